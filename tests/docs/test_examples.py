"""The bundled example data."""

from pathlib import Path

import pyarrow.parquet as pq
import pytest

from iotctl.errors import InputProblem
from iotctl.rows.examples import FILES, PREFIX, named_file

ROOT = Path(__file__).resolve().parents[2]


def test_every_example_exists(tmp_path: Path) -> None:
    """A name resolves to a file in the package, independent of the working directory."""
    for name in FILES:
        assert named_file(PREFIX + name, tmp_path).is_file()


def test_the_example_has_one_year_of_weather() -> None:
    """The number of rows that examples/data/README.md states."""
    assert pq.read_metadata(named_file("example:weather", ROOT)).num_rows == 26_115


def test_other_names_are_paths(tmp_path: Path) -> None:
    """Relative paths start at the working directory; absolute paths are unchanged."""
    assert named_file("a/b.csv", tmp_path) == tmp_path / "a" / "b.csv"
    assert named_file("/a/b.csv", tmp_path) == Path("/a/b.csv")


def test_the_error_for_an_unknown_example_names_the_known_ones(tmp_path: Path) -> None:
    """The error quotes the unknown name and suggests the known ones."""
    with pytest.raises(InputProblem) as caught:
        named_file("example:nothing", tmp_path)
    assert "example:weather" in caught.value.next
    assert caught.value.where == "example:nothing"
