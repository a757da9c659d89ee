"""The values that the steps of a run refer to, and the secrets among them."""

from collections.abc import Mapping
from typing import Any

import msgspec

from iotctl.spec.expression import at

REDACTED = "***"


class Values:
    """Variables and registered results, by path."""

    def __init__(self, variables: Mapping[str, Any], secrets: frozenset[str]) -> None:
        self._values: dict[str, Any] = dict(variables)
        self._secrets = secrets

    def register(self, name: str, value: Any) -> None:
        self._values[name] = value

    def __call__(self, path: tuple[str | int, ...]) -> Any:
        """The value at `path`. Raises `KeyError`, with a message for the operator, if there is none."""
        if path[0] not in self._values:
            raise KeyError(f"{path[0]} is not known: the step that registers it did not run")
        return at(self._values[str(path[0])], path[1:])

    def redact(self, text: str) -> str:
        """`text` with `***` for each secret, as it is or with the escapes of Python or JSON."""
        for secret in sorted(self._secrets, key=len, reverse=True):
            for shown in (repr(secret)[1:-1], msgspec.json.encode(secret).decode()[1:-1], secret):
                text = text.replace(shown, REDACTED)
        return text
