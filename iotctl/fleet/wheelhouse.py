"""The node's software as wheels: `nodeagent` and its dependencies in the versions of this machine.

Dependencies are downloaded once per set of versions and platform, and stored in the user's cache. The version
ends with a hash of the code and of every pinned dependency, so machines with the same version have the same
software.
"""

import base64
import hashlib
import io
import re
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Mapping
from email.parser import HeaderParser
from importlib import metadata
from pathlib import Path

import msgspec
import xxhash

import nodeagent
from iotctl.errors import InputProblem, Unreachable

NEEDS = (
    "cryptography",
    "mmh3",
    "msgspec",
    "numpy",
    "prometheus-client",
    "psutil",
    "pyarrow",
    "pyyaml",
    "tsfile",
    "typer",
    "uvloop",
    "xxhash",
)
"""The packages that `nodeagent` imports (checked by a test); only the operator needs Spark and SSH."""

DOWNLOAD_TIMEOUT_S = 600.0
DONE = ".complete"
_NAME = re.compile(r"^[A-Za-z0-9._-]+")
_LONG_AGO = (1980, 1, 1, 0, 0, 0)


class Platform(msgspec.Struct, frozen=True):
    """Determines the wheels for a machine: `python` as `3.11`, `arch` as `x86_64`, `libc` as `2.36`."""

    python: str
    arch: str
    libc: str

    def __str__(self) -> str:
        return f"cp{self.python.replace('.', '')}-{self.arch}-glibc{self.libc}"

    @property
    def tags(self) -> list[str]:
        """The platform tags of its wheels, newest first."""
        major, _, minor = self.libc.partition(".")
        tags = [f"manylinux_{major}_{n}_{self.arch}" for n in range(int(minor or 0), 16, -1)]
        return [*tags, f"manylinux2014_{self.arch}", f"linux_{self.arch}"]


class Software(msgspec.Struct, frozen=True):
    """`version` identifies the software; `pins` are the dependencies as name and version."""

    version: str
    pins: tuple[tuple[str, str], ...]
    code: tuple[tuple[str, bytes], ...]


def software() -> Software:
    """The node's software as installed on this machine.

    Raises:
        InputProblem: one of its packages is not installed.
    """
    root = Path(nodeagent.__file__).parent
    files = sorted(p for p in root.rglob("*") if p.suffix in (".py", ".json") or p.name == "py.typed")
    code = tuple((str(p.relative_to(root.parent)), p.read_bytes()) for p in files)
    pins = tuple(sorted(_closure().items()))
    digest = xxhash.xxh3_64()
    for name, text in code:
        digest.update(f"{name}\0{len(text)}\0".encode())
        digest.update(text)
    digest.update(repr(pins).encode())
    return Software(f"{nodeagent.__version__}+{digest.hexdigest()[:12]}", pins, code)


def wheelhouse(which: Software, platform: Platform, cache: Path) -> bytes:
    """All wheels as one tar: that of the node, and those of its dependencies, which are downloaded once.

    Raises:
        Unreachable: the package index has no wheel for this platform, or cannot be reached.
    """
    pins = "".join(f"{name}=={version}\n" for name, version in which.pins)
    key = xxhash.xxh3_64_hexdigest(pins.encode())[:12]
    directory = cache / "wheelhouse" / f"{key}-{platform}"
    if not (directory / DONE).is_file():
        _fetch(pins, platform, directory)
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as tar:
        for path in sorted(directory.glob("*.whl")):
            tar.add(path, path.name)
        own = _wheel(which)
        entry = tarfile.TarInfo(f"nodeagent-{which.version}-py3-none-any.whl")
        entry.size = len(own)
        tar.addfile(entry, io.BytesIO(own))
    return out.getvalue()


def _fetch(pins: str, platform: Platform, directory: Path) -> None:
    directory.mkdir(parents=True, exist_ok=True)
    constraints = directory / "constraints.txt"
    constraints.write_text(pins)
    words = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check"]
    words += ["--only-binary=:all:", "--implementation=cp", f"--python-version={platform.python}"]
    words += [f"--platform={tag}" for tag in platform.tags]
    words += ["--constraint", str(constraints), "--dest", str(directory), "pip", *NEEDS]
    try:
        done = subprocess.run(words, capture_output=True, timeout=DOWNLOAD_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        raise _not_fetched(platform, f"pip did not finish within {DOWNLOAD_TIMEOUT_S:g} s") from None
    if done.returncode:
        said = done.stderr.decode(errors="replace").strip().splitlines()
        raise _not_fetched(platform, said[-1] if said else f"pip exited with {done.returncode}")
    (directory / DONE).touch()


def _closure() -> dict[str, str]:
    """`NEEDS` and their dependencies, transitively, with the versions installed here."""
    found: dict[str, str] = {}
    pending = list(NEEDS)
    while pending:
        name = _canonical(pending.pop())
        if name in found:
            continue
        try:
            there = metadata.distribution(name)
        except metadata.PackageNotFoundError:
            if name in map(_canonical, NEEDS):
                raise InputProblem(
                    f"the package {name} is not installed on this machine; nothing was changed",
                    why="nodes get the versions of this machine",
                    next="pip install iotctl",
                ) from None
            continue  # only needed on other systems or Python versions
        found[name], requires = _headers_of(there)
        wanted = (r for r in requires if "extra ==" not in r)
        pending += [m[0] for r in wanted if (m := _NAME.match(r))]
    return found


def _headers_of(there: metadata.Distribution) -> tuple[str, list[str]]:
    """(version, requirements); `metadata` would parse the whole description of each package."""
    text = there.read_text("METADATA")
    if text is None:  # the old format of setuptools
        return there.version, list(there.requires or ())
    headers = HeaderParser().parsestr(text.partition("\n\n")[0])
    return headers["Version"], headers.get_all("Requires-Dist") or []


def _canonical(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def _wheel(which: Software) -> bytes:
    """A wheel of the code according to PEP 427; equal software gives equal bytes."""
    info = f"nodeagent-{which.version}.dist-info"
    needs = {_canonical(n) for n in NEEDS}
    pinned = "".join(f"Requires-Dist: {n}=={v}\n" for n, v in which.pins if n in needs)
    files: dict[str, bytes] = dict(which.code)
    files[f"{info}/METADATA"] = (
        f"Metadata-Version: 2.1\nName: nodeagent\nVersion: {which.version}\n{pinned}".encode()
    )
    files[f"{info}/WHEEL"] = (
        b"Wheel-Version: 1.0\nGenerator: iotctl\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
    )
    files[f"{info}/entry_points.txt"] = b"[console_scripts]\nnodeagent = nodeagent.cli:main\n"
    files[f"{info}/RECORD"] = _record(files, f"{info}/RECORD")
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, text in files.items():
            entry = zipfile.ZipInfo(name, _LONG_AGO)
            entry.external_attr = 0o644 << 16
            entry.compress_type = zipfile.ZIP_DEFLATED
            archive.writestr(entry, text)
    return out.getvalue()


def _record(files: Mapping[str, bytes], itself: str) -> bytes:
    lines = []
    for name, text in files.items():
        digest = base64.urlsafe_b64encode(hashlib.sha256(text).digest()).rstrip(b"=").decode()
        lines.append(f"{name},sha256={digest},{len(text)}")
    return "\n".join([*lines, f"{itself},,"]).encode() + b"\n"


def _not_fetched(platform: Platform, why: str) -> Unreachable:
    return Unreachable(
        f"the packages for {platform} could not be downloaded; nothing was installed",
        why=why,
        next="check pip's settings (pip config list), or use a Python for which all packages have wheels",
    )
