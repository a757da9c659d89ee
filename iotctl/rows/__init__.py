"""Rows in and out of a cluster, and the tables that they are in."""
