"""Dense, ordered numbers for the tag tuples of rows, used for sorting and checksums."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

Int64s = npt.NDArray[np.int64]

_CODES_MAX = 1 << 62


@dataclass(frozen=True, slots=True)
class TagCodes:
    """One tag column: `codes` is 0 for null, else 1 + the value's rank in byte order in `values`."""

    codes: Int64s
    values: pa.Array


def tag_codes(column: pa.Array) -> TagCodes:
    """Number the values of one tag column; nulls come first, then byte order."""
    encoded = column.dictionary_encode()
    values = encoded.dictionary
    order = pc.sort_indices(values)
    ranks = np.empty(len(values) + 1, np.int64)
    ranks[order.to_numpy()] = np.arange(1, len(values) + 1)
    ranks[-1] = 0
    indices = encoded.indices
    if indices.null_count:
        indices = indices.fill_null(len(values))
    return TagCodes(ranks[indices.to_numpy()], values.take(order))


def series_codes(tags: list[TagCodes], rows: int) -> tuple[Int64s, int]:
    """One number per row that orders rows by their tag tuples, and an upper bound of the numbers."""
    codes = np.zeros(rows, np.int64)
    bound = 1
    for tag in tags:
        card = len(tag.values) + 1
        if bound * card >= _CODES_MAX:
            distinct, codes = np.unique(codes, return_inverse=True)
            bound = len(distinct)
        codes = codes * card + tag.codes
        bound *= card
    return codes, bound
