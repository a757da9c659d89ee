"""The shell around the pure host: sockets, threads, clocks, files, processes.

Lives here: executing what `host` asks for and feeding back what came of it. Not here: decisions.
"""
