"""Keep pandas out of our processes: no code of ours needs it, and it costs some 0.3 s at start and 40 MB.

Two packages import it on their own. `pyarrow` does so at its first conversion, and continues without it if
the import fails. `tsfile` does so when it is imported, for data frames that we never pass.
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
    """Make `import pandas` fail in this process from now on, unless it was imported before.

    None in `sys.modules` does not work, because compiled modules would use that None as the package.
    """
    sys.meta_path.insert(0, _NoPandas())


@contextmanager
def placeholders() -> Iterator[None]:
    """Inside the context, `import pandas` gives empty types that can only be used in annotations."""
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
            raise ModuleNotFoundError("pandas is disabled in this process", name=fullname)


class _Placeholder(ModuleType):
    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.__path__: list[str] = []

    def __getattr__(self, name: str) -> type:
        if name.startswith("__"):
            raise AttributeError(name)
        return type(name, (), {})
