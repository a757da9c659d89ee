"""The example that comes with iotctl."""

from pathlib import Path

import pyarrow.parquet as pq
import pytest

from iotctl.errors import InputProblem
from iotctl.rows.examples import FILES, PREFIX, named_file

ROOT = Path(__file__).resolve().parents[2]


def test_every_example_is_there(tmp_path: Path) -> None:
    """A name leads to a file inside the package, wherever the command is run."""
    for name in FILES:
        assert named_file(PREFIX + name, tmp_path).is_file()


def test_the_example_is_the_weather_of_a_year() -> None:
    """The rows that examples/data describes."""
    assert pq.read_metadata(named_file("example:weather", ROOT)).num_rows == 26_115


def test_other_words_are_paths(tmp_path: Path) -> None:
    """Relative to where the command is run; absolute ones stay."""
    assert named_file("a/b.csv", tmp_path) == tmp_path / "a" / "b.csv"
    assert named_file("/a/b.csv", tmp_path) == Path("/a/b.csv")


def test_an_unknown_example_names_those_there_are(tmp_path: Path) -> None:
    """The error says which word is wrong and which are right."""
    with pytest.raises(InputProblem) as caught:
        named_file("example:nothing", tmp_path)
    assert "example:weather" in caught.value.next
    assert caught.value.where == "example:nothing"
