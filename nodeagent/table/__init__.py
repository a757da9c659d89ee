"""Rows of one table: Arrow form, merge, checksum and pages; the memtable and the manifest of a group.

Pure: bytes and Arrow data in, values out. Nothing here opens a file or reads a clock.
"""
