"""The end-to-end demo on this machine."""
