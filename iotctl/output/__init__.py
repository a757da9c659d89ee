"""Output of results, progress and failures.

Results go to stdout, everything else to stderr. No other package imports tabulate.
"""
