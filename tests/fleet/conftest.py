"""sshd on loopback addresses, each a machine of its own as far as SSH can tell."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.fleet.sshd import Sshd, make_key


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Sshd]]:
    """`start(NAME, address=…, port=…)`; stopped at the end."""
    key = make_key(tmp_path / "id")
    made: list[Sshd] = []

    def begin(name: str = "a", **options: object) -> Sshd:
        made.append(Sshd(tmp_path / name, key, **options))  # type: ignore[arg-type]
        return made[-1]

    yield begin
    for sshd in made:
        sshd.stop()
