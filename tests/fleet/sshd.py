"""A real sshd on a loopback address, with its own host keys, for the user who runs the tests."""

import getpass
import os
import shutil
import socket
import subprocess
import time
from dataclasses import dataclass, field
from pathlib import Path

from iotctl.fleet.ports import take_ports

SSHD = shutil.which("sshd") or shutil.which("sshd", path="/usr/sbin:/usr/local/sbin")


def make_key(path: Path) -> Path:
    """An ed25519 pair without a passphrase: `path` and `path.pub`."""
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "", "-f", str(path)], check=True)
    return path


@dataclass
class Sshd:
    """An sshd that runs from its construction; it only accepts `user_key`."""

    directory: Path
    user_key: Path
    address: str = "127.0.0.1"
    port: int = 0
    options: tuple[str, ...] = ()
    host_key: Path = field(init=False)
    _process: "subprocess.Popen[bytes]" = field(init=False)

    def __post_init__(self) -> None:
        assert SSHD, "install the OpenSSH server: apt-get install openssh-server"
        self.directory.mkdir(parents=True, exist_ok=True)
        self.port = self.port or take_ports(1, self.directory)[0]
        self.host_key = self.directory / "host_key"
        if not self.host_key.is_file():
            make_key(self.host_key)
        authorized = self.directory / "authorized_keys"
        shutil.copy(self.user_key.with_suffix(".pub"), authorized)
        if os.geteuid() == 0:
            Path("/run/sshd").mkdir(mode=0o755, exist_ok=True)
        config = self.directory / "sshd_config"
        lines = (
            f"ListenAddress {self.address}:{self.port}",
            f"HostKey {self.host_key}",
            f"AuthorizedKeysFile {authorized}",
            f"PidFile {self.directory / 'pid'}",
            "PasswordAuthentication no",
            "KbdInteractiveAuthentication no",
            "UsePAM no",
            "StrictModes no",
            f"SetEnv HOME={self.directory}",  # so that no .bashrc of the tester runs
            *self.options,
        )
        config.write_text("\n".join(lines) + "\n")
        self.start()

    def start(self) -> None:
        """Start again after `stop`, with the same keys on the same port."""
        assert SSHD
        words = [SSHD, "-D", "-e", "-f", str(self.directory / "sshd_config")]
        with (self.directory / "log").open("ab") as log:
            self._process = subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        self._wait()

    @property
    def user(self) -> str:
        return getpass.getuser()

    @property
    def pid(self) -> int:
        return self._process.pid

    def stop(self) -> None:
        self._process.terminate()
        self._process.wait(10)

    def _wait(self) -> None:
        deadline = time.monotonic() + 10.0
        while True:
            try:
                socket.create_connection((self.address, self.port), 1.0).close()
                return
            except OSError:
                said = (self.directory / "log").read_text()
                assert self._process.poll() is None and time.monotonic() < deadline, said
                time.sleep(0.02)
