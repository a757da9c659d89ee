"""Boolean masks of Arrow columns as numpy arrays."""

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

Mask = npt.NDArray[np.bool_]


def mask(found: pa.Array) -> Mask:
    """Where `found` is true; null counts as false."""
    held: Mask = pc.fill_null(found, False).to_numpy(zero_copy_only=False)
    return held


def nulls(array: pa.Array) -> Mask:
    missing: Mask = pc.is_null(array).to_numpy(zero_copy_only=False)
    return missing
