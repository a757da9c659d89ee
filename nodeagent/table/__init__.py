"""Rows of one table: their Arrow form, merge, checksum; what a memtable and a manifest know.

Pure: bytes and Arrow data in, values out. Nothing here opens a file or looks at a clock.
"""
