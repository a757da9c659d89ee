"""The shell around the pure host: sockets, threads, clocks, files, processes.

The shell executes the host's effects and feeds the results back. All decisions are made in `host`.
"""
