"""Options that several commands share, and global options, which may come before or after the command."""

import re
from collections.abc import Callable, Sequence
from typing import Annotated

import typer

from iotctl.spec.units import parse_duration_ms, parse_rate

VALUES = ("--cluster", "--identity", "--timeout", "--output", "-o")
FLAGS = ("--quiet", "-q", "--verbose", "-v", "--no-color", "--no-input", "--debug")


def global_options_first(arguments: Sequence[str]) -> list[str]:
    """Move global options to the front and keep the order otherwise. `--` ends the search.

    >>> global_options_first(["cluster", "status", "-o", "json"])
    ['-o', 'json', 'cluster', 'status']
    """
    front, rest = _split(arguments)
    return front + rest


def command_words(arguments: Sequence[str]) -> list[str]:
    """The arguments without the global options."""
    return _split(arguments)[1]


def is_csv_refused(arguments: Sequence[str]) -> bool:
    """Whether a command other than `data query` was asked for CSV, which holds one table of plain values."""
    _, rest = _split(arguments)
    return format_of(arguments) == "csv" and rest[:2] != ["data", "query"] and "--help" not in rest


def _split(arguments: Sequence[str]) -> tuple[list[str], list[str]]:
    """(global options, the command with its own arguments)."""
    front: list[str] = []
    rest: list[str] = []
    pending = list(arguments)
    while pending:
        word = pending.pop(0)
        if word == "--":
            rest += [word, *pending]
            break
        if word in FLAGS or word.startswith(tuple(f"{v}=" for v in VALUES if v.startswith("--"))):
            front.append(word)
        elif word in VALUES and pending:
            front += [word, pending.pop(0)]
        elif word.startswith("-o") and not word.startswith("--") and len(word) > 2:
            front += ["-o", word[2:]]
        else:
            rest.append(word)
    return front, rest


def format_of(arguments: Sequence[str]) -> str:
    """The requested output format, found before parsing: usage errors must use it too."""
    words = global_options_first(arguments)
    for i, word in enumerate(words):
        if word in ("-o", "--output") and i + 1 < len(words):
            return words[i + 1]
        if word.startswith("--output="):
            return word.partition("=")[2]
    return "table"


def one_of(*allowed: str, former: tuple[str, ...] = ()) -> Callable[[str], str]:
    """A parser that accepts only `allowed`, and `former` names, which errors do not mention. It also checks
    playbooks (`catalogue`)."""

    def parse(text: str) -> str:
        if text not in allowed and text not in former:
            raise typer.BadParameter(f"{text!r} is not one of {', '.join(allowed)}")
        return text

    return parse


def text_for(parse: Callable[[str], object], kind: str = "string") -> Callable[[str], str]:
    """A parser that returns the text if `parse` accepts it. `kind` is its type in playbooks."""

    def parsed(text: str) -> str:
        parse(text)
        return text

    parsed.__name__ = kind
    return parsed


Yes = Annotated[bool, typer.Option("--yes", "-y", help="Answer yes to every yes-or-no question.")]
Confirm = Annotated[
    str | None,
    typer.Option("--confirm", metavar="NAME", help="The cluster's name, if the command asks for it."),
]
AcceptDataLoss = Annotated[
    bool, typer.Option("--accept-data-loss", help="Recover; without this option, only show the loss.")
]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Show what the command would do; change nothing.")]
Wait = Annotated[bool, typer.Option("--wait/--no-wait", help="Wait for completion.")]
Watch = Annotated[bool, typer.Option("--watch", help="Repeat every 2 s until interrupted.")]
Follow = Annotated[bool, typer.Option("--watch", help="Check for new entries every 2 s until interrupted.")]
AcceptLayout = Annotated[
    bool,
    typer.Option("--accept-layout", help="Accept a layout that violates the rules for zones or weights."),
]
Verify = Annotated[bool, typer.Option("--verify", help="Retain the old copies until a verification passes.")]
DEPTHS = ("manifest", "hash", "content")


def _depth(text: str) -> object:
    return typer.Option("--depth", metavar="|".join(DEPTHS), parser=one_of(*DEPTHS), help=text)


Depth = Annotated[str | None, _depth("Compare file lists, file hashes, or (by default) every value.")]
VerifyDepth = Annotated[
    str | None, _depth("Verify file lists, file hashes, or (by default) every value; implies --verify.")
]


def rate_option(text: str) -> object:
    return typer.Option("--rate", metavar="RATE", parser=text_for(parse_rate, "rate"), help=text)


Rate = Annotated[str, rate_option("Cluster-wide copy rate, such as 200MB/s, or auto.")]
Duration = text_for(parse_duration_ms, "duration")


MASTERS = re.compile(r"local(\[(\d+|\*)(,\d+)?\])?|spark://[^:\s]+:\d+(,[^:\s]+:\d+)*|yarn|k8s://\S+")


def parse_master(master: str) -> str:
    """Raises `BadParameter` if Spark would reject `master`; no JVM is started."""
    if not MASTERS.fullmatch(master):
        raise typer.BadParameter(
            f"{master!r} is not one of local[*], local[N], spark://HOST:PORT, yarn, k8s://URL"
        )
    return master


Master = Annotated[
    str,
    typer.Option("--master", metavar="MASTER", parser=parse_master, help="Spark master that runs the job."),
]

Nodes = Annotated[list[str], typer.Argument(metavar="NODE…", help="Node names.")]
Node = Annotated[str, typer.Argument(metavar="NODE", help="Node name.")]
NoMigrate = Annotated[
    bool, typer.Option("--no-migrate", help="Stop before data is copied; continue with `iotctl migrate`.")
]
HoldRelease = Annotated[
    str | None,
    typer.Option(
        "--hold-release",
        metavar="DURATION",
        parser=Duration,
        help="Retain the old copies this long, such as 24h, or until `ops release`; no other change can "
        "start before then.",
    ),
]
NoWriteSpec = Annotated[
    bool, typer.Option("--no-write-spec", help="Show the edit of cluster.yaml instead of writing it.")
]
