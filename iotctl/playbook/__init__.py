"""Playbooks: what is read, decided, run, recorded and reported."""
