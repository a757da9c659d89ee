"""The end-to-end demo on the local machine."""
