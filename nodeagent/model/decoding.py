"""What goes wrong when bytes are decoded."""

import msgspec

UNDECODABLE = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)
"""Raised by `msgspec` for bytes that are not what they should be. For text that is not UTF-8, and for what is
nested too deep, it has no errors of its own."""
