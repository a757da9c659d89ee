"""How results, progress and failures reach the operator.

Results go to stdout, everything else to stderr. This room is the only importer of tabulate.
"""
