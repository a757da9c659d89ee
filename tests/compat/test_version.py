"""One constant defines the version; everything that shows a version agrees."""

import re
import tomllib
from pathlib import Path

import pytest

import iotctl
import nodeagent
from iotctl.fleet import wheelhouse
from tests.iotctl.fakes import FakeCluster
from tests.iotctl.fakes import iotctl as run

ROOT = Path(__file__).parents[2]


def test_every_version_equals_the_package_version(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    version = nodeagent.__version__
    assert re.fullmatch(r"\d+\.\d+\.\d+", version)
    assert iotctl.__version__ is version
    run(tmp_path, "--version", cluster=FakeCluster())
    assert capsys.readouterr().out == f"iotctl {version}\n"
    assert wheelhouse.software().version.startswith(f"{version}+")
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    assert project["project"]["dynamic"] == ["version"]
    assert project["tool"]["setuptools"]["dynamic"]["version"] == {"attr": "nodeagent.__version__"}


def test_the_changelog_starts_with_the_version() -> None:
    heads = re.findall(r"^## (.+)$", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert heads[0] == nodeagent.__version__
    numbers = [tuple(map(int, head.split("."))) for head in heads]
    assert numbers == sorted(numbers, reverse=True)
