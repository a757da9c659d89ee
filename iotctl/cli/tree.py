"""The tree of commands, and the part of it that a command line needs.

Loading all commands takes longer than running a small one. Typer also examines each command that it gets.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from importlib import import_module
from types import ModuleType
from typing import NamedTuple

import typer
from typer.models import CommandInfo

HELP = "Operate, scale and migrate clusters of time-series storage nodes."
EPILOG = (
    "The options above may come before or after the command. "
    "Exit codes: 0 done, 2 usage, 3 input, 4 unreachable, 5 refused, 6 partly done, 7 verification failed, "
    "8 changes pending, 9 outcome unknown, 10 busy."
)


class Branch(NamedTuple):
    """A command or a group of `iotctl`, with its line in `iotctl --help`.

    The module of a group has an `app`; the module of a command has a function `register`.
    """

    name: str
    module: str
    help: str


COMMANDS = (
    Branch("demo", "demo", "Start a fleet, load data, add and remove nodes under load."),
    Branch("apply", "apply", "Ask, then execute a plan."),
    Branch("migrate", "migrate", "Use Spark to copy the data of an open change."),
    Branch("verify", "migrate", "Compare all replicas."),
    Branch("completion", "completion", "Print the completion script for a shell."),
)
GROUPS = (
    Branch("local", "local", "Run a fleet on this machine."),
    Branch("cluster", "cluster", "Inspect a cluster and change its nodes."),
    Branch("meta", "meta", "Inspect, back up and recover the cluster's metadata."),
    Branch("plan", "plan", "Show what a change would do, without making it."),
    Branch("ops", "ops", "List, watch and control operations."),
    Branch("data", "data", "Write, read, import, export and delete rows."),
    Branch("audit", "audit", "Export and check the cluster's audit log."),
    Branch("cert", "cert", "Manage certificates of nodes and operators."),
    Branch("playbook", "playbook", "Run commands from a YAML file."),
    Branch("support", "support", "Collect support diagnostics."),
)

Callback = Callable[..., None]


def whole(callback: Callback) -> typer.Typer:
    """Every command."""
    app = _root(callback)
    for module in dict.fromkeys(command.module for command in COMMANDS):
        _load(module).register(app)
    for group in GROUPS:
        app.add_typer(_load(group.module).app, name=group.name)
    return app


def needed(callback: Callback, words: Sequence[str]) -> typer.Typer:
    """Only the command that `words` begin with; if they begin with no command, the first level with its help.

    Args:
        words: of a command line, without its global options.
    """
    app = _root(callback)
    for group in GROUPS:
        if words and group.name == words[0]:
            app.add_typer(_part(_load(group.module).app, words[1:]), name=group.name)
            return app
    for command in COMMANDS:
        if words and command.name == words[0]:
            _load(command.module).register(app)
            app.registered_commands = [c for c in app.registered_commands if _name_of(c) == command.name]
            return app
    for command in COMMANDS:
        app.command(command.name, help=command.help)(_nothing)
    for group in GROUPS:
        app.add_typer(typer.Typer(help=group.help), name=group.name)
    return app


def _root(callback: Callback) -> typer.Typer:
    app = typer.Typer(
        name="iotctl",
        help=HELP,
        epilog=EPILOG,
        no_args_is_help=True,
        add_completion=False,
        rich_markup_mode=None,
        pretty_exceptions_enable=False,
    )
    app.callback()(callback)
    return app


def _nothing() -> None:
    raise AssertionError("a command without an implementation was run")


def _load(module: str) -> ModuleType:
    return import_module(f"iotctl.cli.{module}")


def _part(group: typer.Typer, words: Sequence[str]) -> typer.Typer:
    """The group with only the command that `words` begin with; if they begin with no command, all of it."""
    groups = [g for g in group.registered_groups if words and g.name == words[0]]
    commands = [c for c in group.registered_commands if words and _name_of(c) == words[0]]
    if not (groups or commands):
        return group
    part = copy.copy(group)
    part.registered_groups, part.registered_commands = list(map(copy.copy, groups)), commands
    for below in part.registered_groups:
        assert below.typer_instance is not None
        below.typer_instance = _part(below.typer_instance, words[1:])
    return part


def _name_of(command: CommandInfo) -> str:
    assert command.callback is not None
    return command.name or command.callback.__name__.replace("_", "-")
