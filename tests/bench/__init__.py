"""`python -m tests.bench`: the performance of the real agents on this machine, next to the machine's limits.

Every bench starts its own agents as processes, asserts that it ran the stated workload, and cleans up.
Figures are meaningful only next to the raw limits of the same run.
"""
