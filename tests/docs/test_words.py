"""Retired words do not return: prose of the project uses the terms of docs/internals/glossary.md."""

import ast
import re
import tokenize
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PYTHON = ("nodeagent", "iotctl", "tests")
TEXTS = ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "Makefile", "docs", "playbooks", "examples")
SUFFIXES = {".md", ".yaml", ".yml", ""}

RETIRED = {
    r"\banew\b": "again, or a specific verb: recreate, renew",
    r"\bfor ever\b": "permanently, or indefinitely",
    r"\bfor good\b": "permanently",
    r"\bput(?:s|ting)? aside\b": "move aside, archive",
    r"\bmend(?:s|ed|ing)?\b": "repair",
    r"\bd(?:id|oes|o) not tell\b": "did not respond, or does not show",
    r"\bwhole road\b": "end to end",
    r"\bby and by\b": "gradually",
    r"\bby hand\b": "manually, or by an operator",
    r"\ba person\b": "an operator, or a user",
    r"\bfor people\b": "for operators, or human-readable",
    r"\bsent again\b": "retried, or resent",
    r"\bof before\b": "previous",
    r"\bwhat others have\b": "name the thing and its holder",
    r"\bknows of\b": "knows, or has a record of",
    r"\bfor itself\b": "separately, or by itself",
    r"\bnobody tells\b": "no node answers",
    r"\bthrown away\b": "discarded",
    r"\bin vain\b": "without a result",
    r"\bwithout end\b": "indefinitely",
    r"\bevidence\b": "progress report",
    r"\bat hand\b": "available",
    r"\bunder way\b": "in progress",
    r"\bhollow\b": "metadata-only",
    r"\boutcasts?\b": "fenced",
    r"\bshun(?:s|ned|ning)?\b": "avoids leadership",
    r"\bled again\b": "recovery completed",
    r"\bheirs?\b": "recovery leader",
    r"\bdesks?\b": "effect queue",
    r"\bdoomed\b": "pending delete",
    r"\bhopeless\b": "unrepairable",
    r"\bcures?\b": "repair action",
    r"\bbur(?:y|ies|ied)\b": "fence a dead node",
    r"\bhand-?overs?\b": "slot migration, or leadership transfer",
    r"\bsteer(?:s|ed|ing)?\b": "control",
    r"\bhold points?\b": "failpoint",
    r"\bcrowd(?:s|ed)?\b": "zone overlap",
    r"\bconductor\b": "coordinator",
    r"\bFORMAL\b": "RECONFIGURING",
    r"\bstage MOVING\b|\bin MOVING\b|\bMOVING stage\b": "COPYING",
    r"\bstage RELEASED\b|\bRELEASED stage\b": "CLEANUP",
    r"\bheaders? of (?:a|the|its|their) groups?\b": "group owner",
    r"\bmid reads?\b|\bmid read level\b": "bounded read",
}
"""What is refused (case-sensitive where it has capitals), with the word to use instead."""

STORED = {
    "hollow": "a field of checkpoints",
    "heirs": "a field of the meta entry ForceRecover",
    "evidence": "a field of StageSpan, and a key of the output of `iotctl ops show` until 0.3.0",
    "Steer": "the tag of the request ControlOperation",
    "is led again by": "a line of the audit log, which members of both releases write alike",
    "FORMAL": "a value of Stage: in meta entries, and `former_stage` in outputs until 0.3.0",
    "MOVING": "as FORMAL",
    "RELEASED": "as FORMAL",
    "handover": "a field of the replies RowsScanned and PartitionsListed",
    "--steer": "a flag of `nodeagent.testing.coverage`",
}
"""Names that are stored or sent, and why they remain. A string that contains nothing else is accepted;
so is a failpoint such as `before:` and a stage, or a type and its field."""

STORED_NAME = re.compile(r"(?:\w+[:.])?([\w -]+)(?:\[\])?")

LEFT_OUT = {
    "docs/reference/cli.md": "generated",
    "tests/compat/0.1.0": "the data of a release",
    "tests/docs/test_words.py": "this file",
}
"""Files and directories that are not checked."""

CODE = re.compile(r"```.*?```|``.*?``|`[^`]*`|\]\([^)]*\)", re.DOTALL)
"""Code blocks, code spans and link targets: they name what the code defines."""

TABLE_OF_WORDS = "\n## Words that we no longer use\n"
"""The heading of the glossary's last section."""


def without_code(text: str) -> str:
    """The text with code removed; line breaks stay, so that positions remain lines."""
    return CODE.sub(lambda m: "\n" * m[0].count("\n"), text)


def comments(path: Path) -> Iterator[tuple[int, str]]:
    """(line, text) of each block of comments."""
    first, block = 0, list[str]()
    with path.open("rb") as file:
        for token in tokenize.tokenize(file.readline):
            if token.type != tokenize.COMMENT:
                continue
            if first + len(block) != token.start[0]:
                if block:
                    yield first, "\n".join(block)
                first, block = token.start[0], []
            block.append(token.string.lstrip("#"))
    if block:
        yield first, "\n".join(block)


def strings(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """(line, text) of each docstring and string literal; the code that planted bugs quote is skipped."""
    calls = [n for n in ast.walk(tree) if isinstance(n, ast.Call)]
    planted = (n for n in calls if isinstance(n.func, ast.Name) and n.func.id == "Mutant")
    quoted = {id(part) for n in planted for arg in n.args[1:] for part in ast.walk(arg)}
    for node in ast.walk(tree):
        if not isinstance(node, ast.Constant) or not isinstance(node.value, str):
            continue
        name = STORED_NAME.fullmatch(node.value.strip())
        if id(node) not in quoted and (name is None or name[1] not in STORED):
            yield node.lineno, node.value


@cache
def prose() -> list[tuple[str, int, str]]:
    """(file, first line, text) of everything that is checked."""
    files = [ROOT / name for name in TEXTS if (ROOT / name).is_file()]
    for name in (*TEXTS, *PYTHON):
        files += sorted(p for p in (ROOT / name).rglob("*") if p.is_file())
    found = list[tuple[str, int, str]]()
    for path in files:
        name = path.relative_to(ROOT).as_posix()
        if any(name == left or name.startswith(f"{left}/") for left in LEFT_OUT):
            continue
        if path.suffix == ".py":
            parts = [*comments(path), *strings(ast.parse(path.read_bytes()))]
            found += [(name, line, without_code(text)) for line, text in parts]
        elif path.suffix in SUFFIXES and name.split("/")[0] in TEXTS:
            found.append((name, 1, without_code(path.read_text().partition(TABLE_OF_WORDS)[0])))
    return found


def uses(pattern: str) -> list[str]:
    """file:line of each use; a space of the pattern matches a line break, too."""
    flags = re.RegexFlag(0) if re.search(r"[A-Z]{2}", pattern) else re.IGNORECASE
    compiled = re.compile(pattern.replace(" ", r"\s+"), flags)
    return [
        f"{name}:{line + text[: hit.start()].count(chr(10))}: {' '.join(hit[0].split())}"
        for name, line, text in prose()
        for hit in compiled.finditer(text)
    ]


@pytest.mark.parametrize(("pattern", "instead"), RETIRED.items(), ids=[p.replace(r"\b", "") for p in RETIRED])
def test_no_retired_word_is_used(pattern: str, instead: str) -> None:
    found = uses(pattern)
    assert not found, f"use {instead!r} instead:\n" + "\n".join(found)


def test_comments_docstrings_and_strings_are_searched_but_no_code(tmp_path: Path) -> None:
    """Comments on consecutive lines are one text; identifiers, code spans and stored names are skipped."""
    path = tmp_path / "sample.py"
    path.write_text('"""A mended file."""\nx = "put\\naside"  # gone for\n# good `anew`\n\nheirs = "heirs"\n')
    parts = [*comments(path), *strings(ast.parse(path.read_bytes()))]
    texts = [(line, without_code(text)) for line, text in parts]
    assert texts == [(2, " gone for\n good "), (1, "A mended file."), (2, "put\naside")]


def test_every_place_is_searched() -> None:
    assert {name.split("/")[0] for name, _, _ in prose()} >= {*TEXTS, *PYTHON}


def test_the_glossary_lists_every_refused_word() -> None:
    """The longest word of each pattern, or its stem, occurs in the glossary's last table."""
    table = (ROOT / "docs" / "internals" / "glossary.md").read_text().partition(TABLE_OF_WORDS)[2].lower()
    for pattern in RETIRED:
        words = re.findall(r"[a-z]+", pattern.replace(r"\b", " ").lower())
        assert max(words, key=len)[:4] in table, pattern
