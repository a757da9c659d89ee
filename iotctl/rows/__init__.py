"""Imports, exports, selections and single rows, and the tables that hold them."""
