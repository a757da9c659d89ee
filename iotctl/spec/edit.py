"""Edits of `cluster.yaml` that change only the necessary lines: comments and order stay.

The edit changes the text at the lines where the parser found the items, because writing a parsed document
would reformat the operator's file. Comment lines directly above an item belong to the item.
"""

import difflib

import yaml

from iotctl.errors import InputProblem
from iotctl.spec.cluster import NodeEntry


def add_node(text: str, node: NodeEntry) -> str:
    """`text` with `node` as the last entry of `nodes`, in the style of the entry before it."""
    items = _items(text)
    lines = text.splitlines(keepends=True)
    if lines and not lines[-1].endswith("\n"):
        lines[-1] += "\n"
    last = items[-1]
    end = _end_line(last)
    indent = " " * (last.start_mark.column - 2)
    pairs = _pairs(node)
    if last.flow_style:
        new = [f"{indent}- {{{', '.join(f'{k}: {v}' for k, v in pairs)}}}\n"]
    else:
        new = [f"{indent}{'- ' if i == 0 else '  '}{k}: {v}\n" for i, (k, v) in enumerate(pairs)]
    return "".join(lines[:end] + new + lines[end:])


def remove_node(text: str, name: str) -> str:
    """`text` without the entry of `name` and the comment lines directly above; unchanged if there is none."""
    for item in _items(text):
        if _name_of(item) != name:
            continue
        lines = text.splitlines(keepends=True)
        start, end = item.start_mark.line, _end_line(item)
        while start > 0 and lines[start - 1].lstrip().startswith("#"):
            start -= 1
        return "".join(lines[:start] + lines[end:])
    return text


def diff(old: str, new: str, file: str) -> str:
    """A unified diff for the operator."""
    return "".join(
        difflib.unified_diff(old.splitlines(keepends=True), new.splitlines(keepends=True), file, file, n=1)
    )


def _items(text: str) -> list[yaml.MappingNode]:
    root = yaml.compose(text, Loader=yaml.SafeLoader)
    assert isinstance(root, yaml.MappingNode), "a loaded spec is a mapping"
    for key, value in root.value:
        if key.value == "nodes" and isinstance(value, yaml.SequenceNode):
            if value.flow_style:
                raise InputProblem(
                    "nodes is a list in brackets and cannot be edited in place",
                    next="remove the brackets and write one node per line, each starting with '- '",
                )
            return list(value.value)
    raise AssertionError("a loaded spec has nodes")


def _name_of(item: yaml.MappingNode) -> str:
    return next(str(v.value) for k, v in item.value if k.value == "name")


def _end_line(item: yaml.MappingNode) -> int:
    """First line after the item's content (a block mapping's own end mark is past later comments)."""
    if item.flow_style:
        return int(item.end_mark.line) + 1
    last = item.value[-1][1]
    return int(last.end_mark.line) + 1 if isinstance(last, yaml.ScalarNode) else _end_line(last)


def _pairs(node: NodeEntry) -> list[tuple[str, str]]:
    values = {
        "name": node.name,
        "host": node.host,
        "port": node.port or None,
        "http_port": node.http_port or None,
        "data_dir": node.data_dir or None,
        "zone": node.zone or None,
        "weight": node.weight if node.weight != 1.0 else None,
    }
    return [(k, _scalar(v)) for k, v in values.items() if v is not None]


def _scalar(value: object) -> str:
    return str(yaml.safe_dump(value, default_flow_style=True)).removesuffix("\n").removesuffix("\n...")
