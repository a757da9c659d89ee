"""Answers to requests, by subject: `dispatch` deals them out to `meta`, `data` and `node`."""
