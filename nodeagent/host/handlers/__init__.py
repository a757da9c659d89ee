"""Answers to requests, by subject: `dispatch` passes each request to `meta`, `data` or `node`."""
