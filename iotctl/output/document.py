"""One JSON or YAML document per result: `format_version`, `kind`, then the body's keys.

Readers ignore unknown keys. A published key stays (see `schemas/`).
"""

from typing import Any

import msgspec

from nodeagent.model.text import is_printable, printable_json

FORMAT_VERSION = 1


def document(kind: str, body: object) -> dict[str, Any]:
    """The document as builtins. `body` is a struct or a mapping; its own `kind`, if any (a plan), wins."""
    plain = msgspec.to_builtins(body)
    assert isinstance(plain, dict), "a document is a mapping"
    return {"format_version": FORMAT_VERSION, "kind": kind, **plain}


def to_json(value: object) -> str:
    """An indented document with a final newline."""
    return printable_json(msgspec.json.format(msgspec.json.encode(value), indent=2).decode()) + "\n"


def to_json_line(value: object) -> str:
    return printable_json(msgspec.json.encode(value).decode()) + "\n"


def to_yaml(value: object) -> str:
    import yaml

    plain = msgspec.to_builtins(value)
    text = str(yaml.safe_dump(plain, sort_keys=False, allow_unicode=True, width=110))
    if is_printable(text, keep="\n"):
        return text
    return str(yaml.safe_dump(plain, sort_keys=False, width=110))
