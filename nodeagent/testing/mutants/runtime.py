"""Bugs between the node and the system: the order of writes, syncs and replies, which peers are accepted, and
what a process finds when it starts."""

from nodeagent.testing.mutants.mutant import Mutant

MUTANTS = (
    Mutant(
        "a new name is not synced after the rename",
        "runtime/disk.py",
        "        _sync_dir(os.path.dirname(target))\n",
        "",
    ),
    Mutant(
        "a file is renamed before it is synced",
        "runtime/disk.py",
        "                file.pwrite(0, data)\n                file.sync()\n",
        "                file.pwrite(0, data)\n",
    ),
    Mutant(
        "a new directory is not synced",
        "runtime/disk.py",
        "            _sync_dir(os.path.dirname(made))\n",
        "",
    ),
    Mutant(
        "a short write counts as complete",
        "runtime/disk.py",
        "            while written < len(data):",
        "            while False:",
    ),
    Mutant(
        "an existing file is created again",
        "runtime/disk.py",
        "os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC",
        "os.O_RDWR | os.O_CREAT | os.O_CLOEXEC",
    ),
    Mutant(
        "two processes use one directory",
        "runtime/disk.py",
        "fcntl.LOCK_EX | fcntl.LOCK_NB",
        "fcntl.LOCK_SH | fcntl.LOCK_NB",
    ),
    Mutant(
        "a batch is reported before its sync",
        "runtime/log_thread.py",
        "            self._log.sync()\n",
        "            self._post(queue[written - 1][0])\n            self._log.sync()\n",
        breaks="S7",
    ),
    Mutant(
        "a batch that the full disk refused counts as synced",
        "runtime/log_thread.py",
        "            self._post(queue[written - 1][0])",
        "            self._post(queue[-1][0])",
    ),
    Mutant(
        "a batch that waits for space is written after later ones",
        "runtime/log_thread.py",
        "[*held, *self._queue]",
        "[*self._queue, *held]",
    ),
    Mutant(
        "the agent continues without its log thread",
        "runtime/log_thread.py",
        "            self._fail(error)",
        "            pass",
    ),
    Mutant(
        "unknown nodes take part in Raft",
        "runtime/driver.py",
        "        if self._admission.heard(connection) is not MembershipStatus.MEMBER:",
        "        if self._admission.heard(connection) is None:",
    ),
    Mutant(
        "the connection of a retired node stays",
        "runtime/admission.py",
        "        if status in REFUSED:\n            try:",
        "        if status is None:\n            try:",
        breaks="S13",
    ),
    Mutant(
        "a non-member may send members' requests",
        "runtime/driver.py",
        'peer.role if status is MembershipStatus.MEMBER else "guest"',
        "peer.role",
    ),
    Mutant(
        "a slow read never frees its place",
        "runtime/driver.py",
        "                self._shares.done(who)",
        "                pass",
    ),
    Mutant(
        "an earlier deadline does not move the timer",
        "runtime/timer.py",
        "        if self._timer is not None and self._timer_at <= deadline:",
        "        if self._timer is not None:",
    ),
    Mutant(
        "work left by a turn waits for the next event",
        "runtime/driver.py",
        "        if not self._host.idle:\n            self._wake()\n",
        "",
    ),
    Mutant(
        "a node is not informed that it was retired",
        "runtime/driver.py",
        'if error.details.get("retired") == self._incarnation:',
        "if False:",
        breaks="S13",
    ),
    Mutant(
        "a node that moved is contacted at its old address",
        "runtime/peers.py",
        "        if address == self.address:",
        "        if self.address:",
    ),
    Mutant(
        "an operator may send progress reports",
        "model/requests/meta.py",
        "Traits(NODES, Repeat.UNLESS_FAILED)",
        "Traits(MEMBERS, Repeat.UNLESS_FAILED)",
        rule_of="runtime",
    ),
    Mutant(
        "a guest may send members' requests",
        "runtime/rights.py",
        "    if role in request.traits.by:",
        "    if role in request.traits.by or role == GUEST:",
    ),
    Mutant(
        "a chunk of any length is accepted",
        "runtime/puller.py",
        "if len(reply.data) > wanted.length or wanted.offset + len(reply.data) > reply.size:",
        "if False:",
    ),
    Mutant(
        "pulls ignore their rate limit",
        "runtime/puller.py",
        "            await self._pace(wanted.length)",
        "            pass",
    ),
    Mutant(
        "only a ValueError of a job is caught",
        "runtime/jobs.py",
        "        except Exception as error:  # a failed job must not end the node",
        "        except ValueError as error:  # a failed job must not end the node",
    ),
    Mutant(
        "files are deleted before the log shows which checkpoint it needs",
        "runtime/startup.py",
        "        log.sync()\n",
        "",
    ),
    Mutant(
        "files are deleted although log and checkpoint do not match",
        "runtime/startup.py",
        "        and not fault_of(group, found, payload, owner)\n",
        "",
    ),
    Mutant(
        "the record of other nodes is accepted without its seal",
        "runtime/peer_starts.py",
        "if found.seal == _seal(found.starts) else",
        "if found.starts else",
    ),
)
