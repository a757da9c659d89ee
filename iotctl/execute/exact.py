"""Which numbers a FLOAT or DOUBLE cannot hold: those too large, and whole numbers that it would change.

A fraction such as 0.1 is rounded by every such type and is meant so.
"""

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

Mask = npt.NDArray[np.bool_]

INFINITE = r"^[+-]?(?i:inf|infinity)$"
WHOLE = {"FLOAT": r"^[+-]?\d{8,}(\.0*)?$", "DOUBLE": r"^[+-]?\d{16,}(\.0*)?$"}
"""Whole numbers that may be too long; shorter ones never are."""


def overflowed(given: pa.Array, values: pa.Array) -> Mask:
    """Where a cast of `given` (text or numbers) made an infinite number of another one."""
    if pa.types.is_string(given.type) or pa.types.is_large_string(given.type):
        said = pc.match_substring_regex(pc.utf8_trim_whitespace(given), INFINITE)
    elif pa.types.is_floating(given.type):
        said = pc.is_inf(given)
    else:
        said = pa.scalar(False)
    return _mask(pc.and_not(pc.is_inf(values), said))


def changed(given: pa.Array, values: pa.Array, kind: str) -> Mask:
    """Where a cast to `kind` made another whole number of one; null where it is not known."""
    if pa.types.is_floating(given.type):
        with np.errstate(over="ignore"):
            return _mask(
                pc.and_(pc.equal(pc.floor(given), given), pc.not_equal(values.cast(given.type), given))
            )
    if pa.types.is_decimal(given.type):
        given = given.cast(pa.string())
    if not (pa.types.is_string(given.type) or pa.types.is_large_string(given.type)):
        return np.zeros(len(given), np.bool_)
    whole = pc.fill_null(pc.match_substring_regex(pc.utf8_trim_whitespace(given), WHOLE[kind]), False)
    whole = pc.and_(whole, pc.fill_null(pc.is_finite(values), False))
    found = np.zeros(len(given), np.bool_)
    at = np.flatnonzero(whole.to_numpy(zero_copy_only=False))
    if len(at):
        texts = given.take(pa.array(at)).dictionary_encode()
        kept = values.take(pa.array(at)).cast(pa.float64()).to_numpy(zero_copy_only=False)
        numbers = [_number(text) for text in texts.dictionary.to_pylist()]
        found[at] = [int(k) != numbers[c] for k, c in zip(kept, texts.indices.to_numpy(), strict=True)]
    return found


def _number(text: str) -> int:
    """Of a whole number that a DOUBLE reaches: it has few digits but for zeros in front."""
    sign, digits = text.strip()[:1], text.strip().partition(".")[0].lstrip("+-0")
    return int(digits or "0") * (-1 if sign == "-" else 1)


def _mask(found: pa.Array) -> Mask:
    mask: Mask = pc.fill_null(found, False).to_numpy(zero_copy_only=False)
    return mask
