"""Numbers that a FLOAT or DOUBLE cannot hold: too large, or whole numbers that it would change.

Fractions such as 0.1 are rounded by every such type, as intended.
"""

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from iotctl.rows.masks import Mask, mask

INFINITE = r"^[+-]?(?i:inf|infinity)$"
WHOLE = {"FLOAT": r"^[+-]?\d{8,}(\.0*)?$", "DOUBLE": r"^[+-]?\d{16,}(\.0*)?$"}
"""Patterns of whole numbers that may not be exact; shorter numbers always are."""

SHORT = r"^-?\d{1,18}$"


def overflowed(given: pa.Array, values: pa.Array) -> Mask:
    """Where a cast of `given` (text or numbers) turned a finite number into an infinite one."""
    if pa.types.is_string(given.type) or pa.types.is_large_string(given.type):
        said = pc.match_substring_regex(pc.utf8_trim_whitespace(given), INFINITE)
    elif pa.types.is_floating(given.type):
        said = pc.is_inf(given)
    else:
        said = pa.scalar(False)
    return mask(pc.and_not(pc.is_inf(values), said))


def changed(given: pa.Array, values: pa.Array, kind: str) -> Mask:
    """Where a cast to `kind` turned a whole number into a different one."""
    if pa.types.is_floating(given.type):
        whole = pc.equal(pc.floor(given), given)
        return mask(pc.and_(whole, pc.not_equal(values.cast(given.type), given)))
    if pa.types.is_decimal(given.type):
        given = given.cast(pa.string())
    found = np.zeros(len(given), np.bool_)
    if not (pa.types.is_string(given.type) or pa.types.is_large_string(given.type)):
        return found
    given = pc.utf8_trim_whitespace(given)
    at = np.flatnonzero(mask(pc.match_substring_regex(given, WHOLE[kind])) & mask(pc.is_finite(values)))
    if len(at):
        texts = pc.replace_substring_regex(given.take(pa.array(at)), r"^\+|\.0*$", "")
        kept = values.take(pa.array(at)).cast(pa.float64()).to_numpy(zero_copy_only=False)
        found[at] = _differ(texts, kept)
    return found


def _differ(texts: pa.Array, kept: npt.NDArray[np.float64]) -> Mask:
    """Where the whole numbers in `texts` differ from those in `kept`."""
    short = mask(pc.match_substring_regex(texts, SHORT))
    numbers = pc.if_else(pa.array(short), texts, pa.scalar("0", texts.type)).cast(pa.int64()).to_numpy()
    found: Mask = np.where(short, kept, 0.0).astype(np.int64) != numbers
    for i in np.flatnonzero(~short):  # more than 18 digits: few columns have any
        found[i] = int(kept[i]) != _number(texts[int(i)].as_py())
    return found


def _number(text: str) -> int:
    """The value of a whole number within the range of a DOUBLE: without leading zeros it has few digits."""
    return int(text.lstrip("-0") or "0") * (-1 if text.startswith("-") else 1)
