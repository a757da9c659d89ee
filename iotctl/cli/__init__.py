"""The commands. One module per group; a command parses, loads, plans, confirms, executes and prints.

At their top, modules here import only typer, the options and the session. A command imports the rest itself,
so that `iotctl --help` stays under 200 ms.
"""
