"""`python -m nodeagent`."""

from nodeagent.cli import main

main()
