"""Bugs in a node's files."""

from nodeagent.testing.mutants.mutant import Mutant

MUTANTS = (
    Mutant(
        "a delta counts for a checkpoint that replaced its own",
        "storage/checkpoint.py",
        "if delta.base != xxhash.xxh3_128_hexdigest(whole):",
        "if False:",
    ),
    Mutant(
        "a delta is saved with any checkpoint",
        "storage/checkpoint.py",
        "if not disk.exists(path) or _digest(disk, path) != changes.base:",
        "if not disk.exists(path):",
    ),
    Mutant(
        "a delta restores files that were removed",
        "storage/checkpoint.py",
        "(f for name, f in files.items() if name not in gone)",
        "(f for name, f in files.items())",
    ),
    Mutant(
        "a delta restores only the added files",
        "storage/checkpoint.py",
        "        files |= {f.name: f for f in _files_decoder.decode(delta.files)}",
        "        files = {f.name: f for f in _files_decoder.decode(delta.files)}",
    ),
    Mutant(
        "an installation keeps the old checkpoint",
        "storage/executor.py",
        "        self.staging.adopt(install_area(snapshot), group, [Adoption(meta.name, meta) for meta in files])\n"
        "        self._save_received(group, snapshot, payload)\n",
        "        self.staging.adopt(install_area(snapshot), group, [Adoption(meta.name, meta) for meta in files])\n",
    ),
    Mutant(
        "a checkpoint is saved before the files that it names",
        "storage/executor.py",
        "        self.staging.adopt(install_area(snapshot), group, [Adoption(meta.name, meta) for meta in files])\n"
        "        self._save_received(group, snapshot, payload)\n",
        "        self._save_received(group, snapshot, payload)\n"
        "        self.staging.adopt(install_area(snapshot), group, [Adoption(meta.name, meta) for meta in files])\n",
    ),
    Mutant(
        "the files of a failed close stay",
        "storage/executor.py",
        'if name.startswith(f"{work}-"):',
        "if False:",
    ),
    Mutant(
        "temporary files survive a start",
        "storage/executor.py",
        "        self._disk.rmtree(layout.TMP)\n        for directory in",
        "        for directory in",
    ),
    Mutant(
        "names of closed files are not durable",
        "storage/files.py",
        "            self._disk.rename(path, layout.file_path(group, meta.slot, meta.name))\n"
        "        for directory in directories:\n            self._disk.sync_dir(directory)",
        "            self._disk.rename(path, layout.file_path(group, meta.slot, meta.name))",
    ),
    Mutant(
        "a start sweeps only slots that no manifest names",
        "storage/files.py",
        'orphans = [f"{directory}/{name}" for name in names if name not in keep]',
        'orphans = [f"{directory}/{name}" for name in names if not keep]',
    ),
    Mutant(
        "a group's files are deleted and its checkpoint stays",
        "storage/files.py",
        "        if self._disk.exists(checkpoint):\n            self._disk.unlink(checkpoint)",
        "        if False:\n            self._disk.unlink(checkpoint)",
    ),
    Mutant(
        "snapshots expire while they are read",
        "storage/snapshot.py",
        "used = self._used_ms | dict.fromkeys(read, now_ms)",
        "used = self._used_ms",
    ),
    Mutant(
        "a snapshot is complete before its links are durable",
        "storage/snapshot.py",
        '        self._disk.sync_dir(f"{directory}/files")\n',
        "",
    ),
    Mutant(
        "staged bytes are not durable",
        "storage/staging.py",
        "            self._file.sync()\n        except OSError:",
        "            pass\n        except OSError:",
    ),
    Mutant(
        "adopted names are not durable",
        "storage/staging.py",
        "            self._place(source, layout.file_path(group, meta.slot, meta.name), meta)\n"
        "        for directory in directories:\n            self._disk.sync_dir(directory)",
        "            self._place(source, layout.file_path(group, meta.slot, meta.name), meta)",
    ),
    Mutant(
        "any file with an adopted file's name is used for it",
        "storage/staging.py",
        "            if hash_file(self._disk, target) == meta.xxh3:\n                return",
        "            return",
    ),
    Mutant(
        "a resumed pull does not hash the bytes that it already has",
        "storage/staging.py",
        "self._hash = hash_open_file(self._file, self.offset)",
        "self._hash = hash_open_file(self._file, 0)",
    ),
    Mutant(
        "copies are accepted whatever their bytes",
        "storage/staging.py",
        "if self.missing or found != self._meta.xxh3:",
        "if self.missing:",
        breaks="S15",
    ),
    Mutant(
        "a file of a group that stays is moved away",
        "storage/staging.py",
        "        link_or_copy(self._disk, source, layout.staged_path(operation, group, meta.slot, meta.name))\n",
        "        self._disk.rename(source, layout.staged_path(operation, group, meta.slot, meta.name))\n",
        breaks="S11",
    ),
    Mutant(
        "own files are linked although their bytes differ",
        "storage/staging.py",
        '        if found != meta.xxh3:\n            raise FileCorrupt(\n                f"{source}',
        '        if False:\n            raise FileCorrupt(\n                f"{source}',
        breaks="S15",
    ),
    Mutant(
        "the files of all groups are deleted with one group",
        "storage/files.py",
        "            self._disk.rmtree(layout.group_dir(group))\n",
        "            self._disk.rmtree(layout.GROUPS)\n            self._disk.mkdirs(layout.GROUPS)\n",
        breaks="S11",
    ),
    Mutant(
        "an image gets its name without being loaded",
        "storage/images.py",
        "            self._load(content)\n",
        "",
    ),
    Mutant(
        "an image gets its name before it is durable",
        "storage/images.py",
        "                self._pause()\n            file.sync()\n",
        "                self._pause()\n",
    ),
    Mutant(
        "a damaged older image counts as one to fall back to",
        "storage/images.py",
        "damaged = [i for i in older if self._is_damaged(group, i)]",
        "damaged: list[int] = []",
    ),
    Mutant(
        "a start loads a damaged image",
        "storage/images.py",
        "            content = read_image(disk, group, index)\n            content.verified()\n",
        "            content = read_image(disk, group, index)\n",
    ),
    Mutant(
        "files that are not staged are described",
        "storage/pull.py",
        "if job.unit is not None and not tally.failed:",
        "if job.unit is not None:",
    ),
)
