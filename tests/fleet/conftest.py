"""An sshd per loopback address; to SSH, each is a separate machine."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.fleet.sshd import Sshd, make_key


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Sshd]]:
    """Returns `start(NAME, address=…, port=…)`; stops every sshd at the end."""
    key = make_key(tmp_path / "id")
    made: list[Sshd] = []

    def begin(name: str = "a", **options: object) -> Sshd:
        made.append(Sshd(tmp_path / name, key, **options))  # type: ignore[arg-type]
        return made[-1]

    yield begin
    for sshd in made:
        sshd.stop()
