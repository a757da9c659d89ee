"""Runs and checks playbooks, and records and reports each run."""
