"""`python -m iotctl`."""

from iotctl.cli.main import main

main()
