"""Tests of the log and of the disks under it."""
