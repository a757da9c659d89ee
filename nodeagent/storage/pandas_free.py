"""Processes without pandas, which nothing of ours needs: it costs each some 0.3 s at its start and 40 MB.

Two packages import it unasked. `pyarrow` does at its first conversion, and goes on without where it cannot be
imported. `tsfile` does at its import, for data frames that we never give it.
"""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.abc import MetaPathFinder
from types import ModuleType

_ASKED_FOR_BY_TSFILE = (
    "pandas",
    "pandas.core",
    "pandas.core.dtypes",
    "pandas.core.dtypes.common",
    "pandas.core.interchange",
    "pandas.core.interchange.dataframe_protocol",
)


def forbid_pandas() -> None:
    """From here on `import pandas` fails in this process, unless it was imported before.

    Not by None in `sys.modules`, which compiled modules take for the package.
    """
    sys.meta_path.insert(0, _NoPandas())


@contextmanager
def placeholders() -> Iterator[None]:
    """Whoever imports pandas meanwhile gets names to annotate with and nothing behind them."""
    if "pandas" in sys.modules:
        yield
        return
    sys.modules.update({name: _Placeholder(name) for name in _ASKED_FOR_BY_TSFILE})
    try:
        yield
    finally:
        for name in _ASKED_FOR_BY_TSFILE:
            del sys.modules[name]


class _NoPandas(MetaPathFinder):
    def find_spec(self, fullname: str, path: object, target: ModuleType | None = None) -> None:
        if fullname == "pandas":
            raise ModuleNotFoundError("this process goes without pandas", name=fullname)


class _Placeholder(ModuleType):
    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.__path__: list[str] = []

    def __getattr__(self, name: str) -> type:
        if name.startswith("__"):
            raise AttributeError(name)
        return type(name, (), {})
