"""Use cases: what a command does once its words are parsed and before its result is printed.

Nothing here prints or asks. Progress goes through a callback; results are structs whose fields are the
JSON keys that others read.
"""
