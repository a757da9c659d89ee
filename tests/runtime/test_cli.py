"""The `nodeagent` command: init, and inspecting a stopped node."""

import json
import shutil
from pathlib import Path

import msgspec
import pytest
from typer.testing import CliRunner

from nodeagent.cli import app, main
from nodeagent.data import commands as data
from nodeagent.data.checkpoint import encode_checkpoint
from nodeagent.data.state import DataState
from nodeagent.host.saved import Saved
from nodeagent.log import Log, LogSettings
from nodeagent.meta import commands as meta
from nodeagent.meta.image import Image
from nodeagent.meta.state import MetaState
from nodeagent.model.entries import Append, Base, Config, Entry, EntryKind, LogOp, Rebase
from nodeagent.model.ids import META, PartitionKey
from nodeagent.model.jobs import CheckpointSaved, FileChanges, SaveCheckpoint
from nodeagent.model.requests import GroupRecord
from nodeagent.raft.membership import encode_config
from nodeagent.runtime.config import load_config
from nodeagent.runtime.disk import RealDisk
from nodeagent.runtime.startup import open_directory
from nodeagent.storage import layout
from tests.storage.units import GROUP, close, path_of, room, rows, unit

INIT = ["--node", "node1", "--port", "9101", "--http-port", "9201", "--seed", "node1=127.0.0.1:9101"]


def test_init_writes_settings_once(tmp_path: Path) -> None:
    """node.yaml is loadable, an existing file is not overwritten, and the error names a bad seed."""
    directory = tmp_path / "node1"
    assert CliRunner().invoke(app, ["init", str(directory), *INIT]).exit_code == 0
    assert load_config(directory / "node.yaml").seeds[0].port == 9101
    again = CliRunner().invoke(app, ["init", str(directory), *INIT])
    assert again.exit_code == 5 and "already exists" in again.stderr
    bad = CliRunner().invoke(app, ["init", str(tmp_path / "x"), *INIT, "--seed", "node2"])
    assert bad.exit_code == 3 and "'node2' is not NODE=HOST:PORT" in bad.stderr
    assert not (tmp_path / "x").exists()


@pytest.mark.parametrize("words,says", [(["runn"], "Did you mean 'run'?"), (["run"], "Missing argument")])
def test_usage_errors_look_like_iotctls(
    words: list[str], says: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """One line that begins with `error:`, the next step, exit code 2."""
    monkeypatch.setattr("sys.argv", ["nodeagent", *words])
    with pytest.raises(SystemExit) as ended:
        main()
    said = capsys.readouterr().err.splitlines()
    assert ended.value.code == 2 and len(said) == 2
    assert said[0].startswith("error: ") and says in said[0] and said[1].endswith("--help")


def test_log_commands_read_a_stopped_node(tmp_path: Path) -> None:
    """`log dump` prints a line per operation; `log check` reports damage with exit code 7."""
    started(tmp_path)
    log, _ = Log.open(RealDisk(tmp_path), "log", LogSettings(segment_bytes=1 << 20, zero_step_bytes=1 << 16))
    for index in range(1, 4):
        log.write([Append("meta", index, [Entry(1, 2, b"payload" * 20)])])
        log.sync()
    log.close()
    dumped = CliRunner().invoke(app, ["log", "dump", str(tmp_path)])
    lines = [json.loads(line) for line in dumped.stdout.splitlines()]
    entries = [line for line in lines if line["group"] == "meta"]
    assert [line["index"] for line in entries] == [1, 2, 3] and all(line["valid"] for line in entries)
    assert CliRunner().invoke(app, ["log", "check", str(tmp_path)]).exit_code == 0

    (segment,) = (tmp_path / "log").glob("*.log")
    content = bytearray(segment.read_bytes())
    content[content.index(b"payload", entries[1]["offset"]) + 3] ^= 1
    segment.write_bytes(content)
    checked = CliRunner().invoke(app, ["log", "check", str(tmp_path)])
    assert checked.exit_code == 7 and "meta" in checked.stdout


def test_log_dump_shows_the_commands_of_a_group_by_name_and_field(tmp_path: Path) -> None:
    """Entries that cannot be decoded are marked, and the lines after them are printed."""
    started(tmp_path)
    log, _ = Log.open(RealDisk(tmp_path), "log", LogSettings(segment_bytes=1 << 20, zero_step_bytes=1 << 16))
    rows = data.WriteRows("s", 1, 0, 3, PartitionKey("root.a", 1, 0), "t", 1, 2, 10, 20, memoryview(b"arrow"))
    entries = [
        Entry(1, EntryKind.NOOP, b""),
        Entry(1, EntryKind.CONFIG, encode_config(Config(("node1", "node2")))),
        Entry(1, EntryKind.COMMAND, meta.encode(meta.SetDraining(7, "node1", True, "jo"))),
        Entry(1, EntryKind.COMMAND, b"\xc1 of a later release"),
        Entry(1, 99, b"?"),
    ]
    log.write([Append(META, 1, entries), Append("g.1", 1, [Entry(1, EntryKind.COMMAND, data.encode(rows))])])
    log.sync()
    log.close()

    def dumped(*words: str) -> list[dict[str, object]]:
        said = CliRunner().invoke(app, ["log", "dump", str(tmp_path), *words])
        assert said.exit_code == 0, said.output
        return [json.loads(line) for line in said.stdout.splitlines()]

    operation, noop, config, drain, newer, unknown = dumped("--group", "meta", "--entries")
    assert operation["count"] == 5 and [noop["kind"], config["kind"]] == ["noop", "config"]
    assert config["config"] == {"voters": ["node1", "node2"], "learners": [], "operation": ""}
    assert drain["command"] == "SetDraining" and (drain["index"], drain["valid"]) == (3, True)
    named = {"now": 7, "node": "node1", "draining": True, "by": "jo", "lock": 0, "for_restart": False}
    assert drain["fields"] == named
    assert not newer["valid"] and newer["error"] and "command" not in newer
    assert (unknown["kind"], unknown["bytes"]) == ("unknown", 1)

    _, written = dumped("--group", "g.1", "--entries")
    assert isinstance(written["fields"], dict) and written["fields"]["ipc"] == {"bytes": 5}
    assert written["fields"]["partition"] == {"storage_group": "root.a", "time_partition": 1, "shard": 0}
    assert [line["group"] for line in dumped("--group", "g.1")] == ["g.1"]
    assert {str(line["group"]) for line in dumped()} == {"", "meta", "g.1"}


def test_offline_commands_refuse_a_running_node(tmp_path: Path) -> None:
    """The offline commands refuse a directory in use, and a directory without node.yaml."""
    CliRunner().invoke(app, ["init", str(tmp_path), *INIT])
    disk = RealDisk(tmp_path)
    disk.lock()
    for verb in (["log", "dump"], ["log", "check"], ["files", "check"]):
        refused = CliRunner().invoke(app, [*verb, str(tmp_path)])
        assert refused.exit_code == 5 and "in use by process" in refused.stderr
    disk.unlock()
    nothing = CliRunner().invoke(app, ["log", "check", str(tmp_path / "elsewhere")])
    assert nothing.exit_code == 5 and "not a node's directory" in nothing.stderr


def test_files_check_lists_files_that_no_manifest_names(tmp_path: Path) -> None:
    """Files in a manifest are hashed; other files are listed by kind, and are an error only with --strict;
    groups that the meta group does not assign to this node are foreign."""
    started(tmp_path, Rebase(META, Base(0, 0, Config(("node1",))), False))
    disk = RealDisk(tmp_path / "data")
    storage = room(disk)
    (meta,) = close(storage, unit("a", (1, rows(3))))
    state = DataState(GROUP)
    state.files.manifest.replace([], [meta])
    storage.run(saved(GROUP, encode_checkpoint(state.checkpoint())))

    def check(*words: str) -> tuple[int, dict[str, str]]:
        said = CliRunner().invoke(app, ["files", "check", str(tmp_path), *words])
        return said.exit_code, {n["name"]: n["found"] for n in map(json.loads, said.stdout.splitlines())}

    whole = {"checkpoint": "ok", meta.name: meta.xxh3}
    assert check("--strict") == (0, whole)
    (tmp_path / "data" / path_of(meta)).with_name("other").write_bytes(b"x")
    (tmp_path / "data" / "staging" / "op-9").mkdir()
    left = whole | {"other": "orphan", "staging/op-9": "staged"}
    assert check() == (0, left) and check("--strict") == (7, left)

    member = GroupRecord(GROUP, "node1", ("node1",), ("node1",), ((0, 1),))
    for groups, code in [({GROUP: member}, 0), ({}, 7)]:
        storage.run(saved(META, MetaState(Image(cluster_id="c", groups=groups)).encode()))
        (tmp_path / "data" / path_of(meta)).with_name("other").unlink(missing_ok=True)
        storage.staging.drop("op-9")
        assert check("--strict")[0] == code
    assert check()[1][f"groups/{GROUP}/checkpoint"] == "foreign"
    (tmp_path / "data" / path_of(meta)).unlink()
    assert check()[0] == 7


def test_checks_compare_log_checkpoints_and_name(tmp_path: Path) -> None:
    """If the checkpoint from which the log continues is missing, both checks fail; so they do for a lost
    log."""
    started(tmp_path, Rebase(META, Base(5, 1, Config(("node1",))), False))
    for verb in ("files", "log", "files"):
        said = CliRunner().invoke(app, [verb, "check", str(tmp_path)])
        assert said.exit_code == 7 and "(image or checkpoint) is missing" in said.stdout, said.output
        (tmp_path / "data" / "groups" / "meta").mkdir(parents=True, exist_ok=True)
    shutil.rmtree(tmp_path / "log")
    for verb in ("log", "files"):
        said = CliRunner().invoke(app, [verb, "check", str(tmp_path)])
        assert said.exit_code == 7 and "log/ is missing or empty" in said.stderr, said.output


def test_a_checkpoint_without_its_delta_and_an_older_one_are_damaged(tmp_path: Path) -> None:
    """They name files that were removed. A start logs which checkpoint it needs before it removes files."""
    founded = Base(1, 0, Config(("node1",)), checkpoint=1)
    started(tmp_path, Rebase(GROUP, founded, False), Rebase(META, Base(0, 0, Config(("node1",))), False))
    storage = room(RealDisk(tmp_path / "data"))
    (meta,) = close(storage, unit("a", (1, rows(3))))

    def payload(number: int) -> bytes:
        base = msgspec.structs.replace(founded, checkpoint=number)
        return msgspec.msgpack.encode(Saved(base, encode_checkpoint(DataState(GROUP).checkpoint())))

    def check() -> tuple[int, int]:
        both = [CliRunner().invoke(app, [verb, "check", str(tmp_path)]) for verb in ("log", "files")]
        assert all(("files were removed after number" in b.stdout) == (b.exit_code == 7) for b in both)
        return both[0].exit_code, both[1].exit_code

    whole = storage.run(SaveCheckpoint(GROUP, payload(2), FileChanges("", (meta,))))
    assert isinstance(whole, CheckpointSaved)
    storage.run(SaveCheckpoint(GROUP, payload(3), FileChanges(whole.base, (), (meta.name,))))
    delta = tmp_path / "data" / layout.delta_path(GROUP)
    newest = delta.read_bytes()
    delta.unlink()
    assert check() == (0, 0), "nothing was removed yet"
    delta.write_bytes(newest)
    assert started(tmp_path) == 1
    assert check() == (0, 0)
    delta.unlink()
    assert check() == (7, 7)
    delta.write_bytes(newest)
    assert check() == (0, 0)


def test_checks_fail_without_node_id(tmp_path: Path) -> None:
    """The agent would not start if `node.id` is missing beside a log or files. The error names the next
    command. Before the first start nothing is missing."""
    CliRunner().invoke(app, ["init", str(tmp_path), *INIT])
    verbs = ("log", "files")
    for verb in verbs:
        assert CliRunner().invoke(app, [verb, "check", str(tmp_path)]).exit_code == 0
    started(tmp_path, Rebase(GROUP, Base(1, 0, Config(("node1",))), False))
    (tmp_path / "node.id").unlink()
    for lost in ("log", "data/groups"):
        for verb in verbs:
            said = CliRunner().invoke(app, [verb, "check", str(tmp_path)])
            assert said.exit_code == 7 and f"node.id is missing, but {lost}/ holds data" in said.stderr
            assert "next: " in said.stderr and "iotctl cluster replace-node node1 NEW --dead" in said.stderr
        shutil.rmtree(tmp_path / "log", ignore_errors=True)
        (tmp_path / "data" / "groups" / GROUP).mkdir(exist_ok=True)


@pytest.mark.parametrize("name", ["node.id", "log/log.id", "log/000000000001.log"])
def test_a_start_names_the_file_that_the_disk_cannot_read(tmp_path: Path, name: str) -> None:
    """The error names the file and the next step; nothing is deleted."""
    started(tmp_path)
    (tmp_path / name).unlink()
    (tmp_path / name).symlink_to("/proc/self/mem")  # reading its first byte fails with EIO, like a bad sector
    said = CliRunner().invoke(app, ["run", str(tmp_path)])
    assert said.exit_code == 7 and name in said.stderr, said.stderr
    assert "iotctl cluster replace-node node1 NEW --dead" in said.stderr
    checked = CliRunner().invoke(app, ["log", "check", str(tmp_path)])
    assert checked.exit_code == 7 and name in checked.stderr and "dmesg" in checked.stderr
    assert (tmp_path / name).is_symlink()


def started(directory: Path, *ops: LogOp) -> int:
    """Create the directory if needed, start and stop on it with these records in the log; return the number
    of files that the start removed."""
    CliRunner().invoke(app, ["init", str(directory), *INIT])
    opened = open_directory(directory)
    opened.log.write(ops)
    opened.log.close()
    opened.home.unlock()
    return opened.swept


def saved(group: str, state: bytes) -> SaveCheckpoint:
    return SaveCheckpoint(group, msgspec.msgpack.encode(Saved(Base(0, 0, Config()), state)))
