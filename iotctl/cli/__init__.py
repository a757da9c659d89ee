"""The commands. A group has one module or a few; a command parses, loads, plans, confirms, executes, prints.

At their top, modules here import only what loads quickly: typer, other modules here, `playbook.traits`. A
command imports the rest itself, so that `iotctl --help` stays under 200 ms.
"""
