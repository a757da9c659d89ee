"""`python -m tests.bench`: what this box does with the real agents, next to what it could do at most.

Every bench starts its own agents as processes, asserts that its workload is what it says, and ends and
deletes what it made. Figures are only worth something beside the raw limits of the same run.
"""
