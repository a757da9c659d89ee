"""Options that the `iotctl data` commands share, and what they mean."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import typer

from iotctl.cli.options import one_of, text_for
from iotctl.cli.session import Session

if TYPE_CHECKING:
    from iotctl.rows.selection import Age, Selection
    from nodeagent.model.schema import TableSchema


def parsed_tag(text: str) -> str:
    """Check a word `tag=value`."""
    from iotctl.rows.selection import parse_where

    return text_for(lambda word: parse_where([word]))(text)


def parsed_time(text: str) -> str:
    """Check a time in milliseconds or ISO 8601."""
    from iotctl.rows.selection import parse_time

    return text_for(parse_time)(text)


@dataclass(frozen=True)
class TableName:
    """The table that a command works on."""

    storage_group: Annotated[str, typer.Option("--storage-group", help="Storage group, such as root.plant.")]
    table: Annotated[str, typer.Option("--table", help="Table name.")]

    def stored(self, session: Session) -> TableName:
        """The name as the cluster stores it; a note says so if it differs."""
        name = TableName(self.storage_group.lower(), self.table.lower())
        if name != self:
            session.output.note(f"names are stored in lower case: {name.storage_group}.{name.table}")
        return name

    def schema(self, session: Session) -> TableSchema:
        """Raises `InputProblem` if there is no such table."""
        from iotctl.rows.selection import table_of

        return table_of(session.cluster, self.storage_group, self.table)


MaybeGroup = Annotated[str | None, typer.Option("--storage-group", help="Limit to this storage group.")]
MaybeTable = Annotated[str | None, typer.Option("--table", help="Limit to this table.")]
Fields = Annotated[str | None, typer.Option("--fields", metavar="A,B", help="Read only these fields.")]
Time = Annotated[
    str | None,
    typer.Option("--time", metavar="TIME", parser=parsed_time, help="Time of the row; default: now."),
]
Tags = Annotated[
    list[str] | None,
    typer.Option("--tag", metavar="TAG=VALUE", parser=parsed_tag, help="Tag of the row; repeatable."),
]
Where = Annotated[
    list[str] | None,
    typer.Option(
        "--where",
        metavar="TAG=VALUE",
        parser=parsed_tag,
        help="Select rows whose tag has this value; repeatable. Values of the same tag are alternatives.",
    ),
]
From = Annotated[
    str | None,
    typer.Option(
        "--from", metavar="TIME", parser=parsed_time, help="First time (ms or ISO 8601), inclusive."
    ),
]
To = Annotated[
    str | None,
    typer.Option("--to", metavar="TIME", parser=parsed_time, help="Last time (ms or ISO 8601), inclusive."),
]
Read = Annotated[
    str,
    typer.Option(
        "--read",
        metavar="strong|bounded|weak",
        parser=one_of("strong", "bounded", "weak", former=("mid",)),
        help="Read level: strong sees every acknowledged write; bounded may lag by up to staleness_max_ms, "
        "weak by any amount.",
    ),
]


def selection_of(where: list[str] | None, time_from: str | None, time_to: str | None) -> Selection:
    from iotctl.rows.selection import Selection, parse_time, parse_where

    first, last = parse_time(time_from), parse_time(time_to)
    if first is not None and last is not None and first > last:
        raise typer.BadParameter(f"{time_from} is after --to {time_to}", param_hint="--from")
    return Selection(parse_where(where or []), first, last)


def fields_of(given: str | None) -> list[str] | None:
    """The field names; None for all fields."""
    return [f.strip().lower() for f in given.split(",")] if given else None


def note_age(session: Session, read: str, age: Age) -> None:
    """Print how old the rows of a read that is not strong may be."""
    from iotctl.humanize import span_text

    if read == "strong":
        return
    if age.ms is None:
        session.output.warn(f"read {read}: no leader confirmed how old these rows are")
    else:
        session.output.note(f"read {read}: writes of the last {span_text(age.ms / 1000)} may be missing")
