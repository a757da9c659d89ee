"""Makes text from data, names and peers safe to show in a terminal."""

import re

_UNSAFE = re.compile(
    "[\x00-\x1f\x7f-\x9f"  # controls: cursor, colours, titles, 8-bit escape sequences
    "\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069"  # order of characters
    "\u2028\u2029\ufeff\ud800-\udfff]"  # line ends, marks and halves of characters
)


def printable(text: str, *, keep: str = "") -> str:
    r"""`text` with control characters escaped as in Python (`\x1b`), except those in `keep`.

    The result moves no cursor, starts no escape sequence, and can be encoded.
    """
    return _UNSAFE.sub(lambda m: m[0] if m[0] in keep else _escaped(m[0]), text)


def is_printable(text: str, *, keep: str = "") -> bool:
    return all(m[0] in keep for m in _UNSAFE.finditer(text))


def printable_json(text: str) -> str:
    r"""Equivalent JSON text: control characters that its encoder left unescaped are escaped, as in `\u009b`.

    Outside of strings the only such character in JSON is the line end.
    """
    return _UNSAFE.sub(lambda m: m[0] if m[0] == "\n" else f"\\u{ord(m[0]):04x}", text)


def _escaped(character: str) -> str:
    return character.encode("unicode_escape", "surrogatepass").decode("ascii")
