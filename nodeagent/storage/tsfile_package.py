"""The official `tsfile` package, without pandas (see `pandas_free`). For worker processes only."""

from nodeagent.storage.pandas_free import placeholders

with placeholders():
    import tsfile

__all__ = ["tsfile"]
