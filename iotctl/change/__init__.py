"""Changes that the meta group carries out: adding and removing nodes, migrating slots, force recovery.

Nothing here prints or prompts the operator: progress goes to callbacks, results are structs.
"""
