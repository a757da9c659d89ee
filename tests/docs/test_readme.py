"""The README's tour: every command runs as written, in an empty directory, and prints the output shown."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text()
COMMAND_LIMIT_S = 240

_VOLATILE = re.compile(r"\d[\d.:]*(?: \d{3})*(?: (?:B|KiB|MiB|ms|s|min)\b)?")


def tour() -> list[tuple[str, list[str]]]:
    """(command, lines shown below it) of every `console` block, in order."""
    steps: list[tuple[str, list[str]]] = []
    for block in re.findall(r"```console\n(.*?)```", README, re.DOTALL):
        for line in block.splitlines():
            if line.startswith("$ "):
                steps.append((line[2:], []))
            elif line:
                steps[-1][1].append(line)
    return steps


def shape(line: str) -> str:
    """Remove what differs between runs: numbers with their units, and column widths."""
    return " ".join(_VOLATILE.sub("#", line).split())


def environment(scratch: Path) -> dict[str, str]:
    """The environment after installation: `iotctl` is on the PATH, without any settings."""
    env = {k: v for k, v in os.environ.items() if not k.startswith("IOTCTL_")}
    here = Path(sys.executable).parent
    places = [str(here), env.get("PATH", "")]
    if not (here / "iotctl").exists():
        scratch.mkdir()
        script = scratch / "iotctl"
        script.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m iotctl "$@"\n')
        script.chmod(0o755)
        places.insert(0, str(scratch))
        env["PYTHONPATH"] = str(ROOT)
    return env | {"PATH": os.pathsep.join(places)}


def run(command: str, cwd: Path, env: dict[str, str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["bash", "-c", command],
        cwd=cwd,
        env=env,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=COMMAND_LIMIT_S,
    )


@pytest.mark.real
@pytest.mark.spark
def test_the_tour_runs_as_written(tmp_path: Path) -> None:
    """Each command exits with 0 and prints the lines shown, and the directory is empty at the end."""
    env = environment(tmp_path / "bin")
    cwd = tmp_path / "empty"
    cwd.mkdir()
    try:
        for step, (command, shown) in enumerate(tour(), 1):
            done = run(command, cwd, env)
            if done.returncode != 0:
                status = run("iotctl cluster status; tail -n 5 iotctl-local/node*/agent.log", cwd, env)
                pytest.fail(f"step {step}: $ {command}\n{done.stdout}\nafterwards:\n{status.stdout}")
            printed = {shape(line) for line in done.stdout.splitlines()}
            missing = [line for line in shown if shape(line) not in printed]
            assert not missing, f"$ {command}\ndoes not print {missing}, but\n{done.stdout}"
            if any("26 115" in line for line in shown):
                assert "26 115" in done.stdout, f"$ {command} lost rows\n{done.stdout}"
        assert [p for p in cwd.iterdir() if p.name != "spark-warehouse"] == []
    finally:
        if (cwd / "iotctl-local").exists():
            run("iotctl local destroy --yes", cwd, env)


def test_the_tour_covers_the_main_tasks() -> None:
    """No step of the tour is removed by accident."""
    words = [" ".join(command.split()[1:3]) for command, _ in tour()]
    expected = "local up|data import|data count|data query|plan add-node|cluster add-node|migrate --verify"
    assert words[:7] == expected.split("|")
    assert words[7:] == ["verify", "cluster remove-node", "data count", "local destroy"]


def test_the_two_commands_are_makefile_targets() -> None:
    """`make demo` and `make test` exist; other tests check what they do."""
    commands = [c for b in re.findall(r"```sh\n(.*?)```", README, re.DOTALL) for c in b.splitlines()]
    assert [c.split("#")[0].strip() for c in commands] == ["make demo", "make test"]
    if shutil.which("make") is None:
        pytest.skip("make is not installed")
    for command in commands:
        dry = run(f"{command.split('#')[0]} --dry-run", ROOT, dict(os.environ))
        assert dry.returncode == 0, dry.stdout


def test_links_lead_somewhere() -> None:
    """Every relative link of the README, of the playbooks' pages and of docs names an existing file."""
    pages = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md"), *(ROOT / "playbooks").glob("*.md")]
    for page in pages:
        for link in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", page.read_text()):
            assert (page.parent / link).exists(), f"{page.relative_to(ROOT)} links to {link}"
