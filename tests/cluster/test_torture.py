"""Two minutes of the torture test; `make torture MINUTES=60` is the long run."""

from pathlib import Path

import pytest

from tests.torture.torture import SKEW_S, make_plant, torture

pytestmark = pytest.mark.real

SECONDS = 90.0
SEED = 7


def test_clients_read_correct_rows_under_two_minutes_of_faults(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Every kind of fault occurs and is healed; exactly the acknowledged rows are read."""
    plant = make_plant(tmp_path, SEED, SKEW_S)
    try:
        said = torture(plant, SECONDS, SEED)
    finally:
        plant.close()
    lines = capsys.readouterr().out
    assert all(word in lines for word in ("kill -9", "SIGSTOP")), lines
    assert "; 0 writes" not in said, said
