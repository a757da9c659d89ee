"""The errors of decoding bytes."""

import msgspec

UNDECODABLE = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)
"""The errors that `msgspec` raises for invalid bytes. It has no errors of its own for text that is not UTF-8
and for values that are nested too deep."""
