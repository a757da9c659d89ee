"""What the meta group carries out: nodes come and go, slots move, lost groups are recovered.

Nothing here prints or asks a person: progress goes through a callback, results are structs.
"""
