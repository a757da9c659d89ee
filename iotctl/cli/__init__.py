"""The commands. One module per group; a command = parse, load, plan, confirm, execute, print.

Modules here import typer and the session only; everything heavy is imported inside the command, so that
`iotctl --help` stays under 200 ms.
"""
