"""`python -m nodeagent.testing SEED [COUNT]`: run seeds, one on each processor, and print their evidence.

Ends with the first that fails.
"""

from nodeagent.testing.parallel import print_evidence
from nodeagent.testing.seeds import evidence

if __name__ == "__main__":
    print_evidence(evidence)
