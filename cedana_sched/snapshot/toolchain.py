"""The CRIU that the suite brings along, and where it lies.

Distributions ship CRIU too old for current kernels (before 4.2.1 every process with an inet socket fails to dump
since Linux 6.16), so the package files of Debian testing are laid into one relocatable folder: CRIU, the libraries it
is linked to with their own dynamic loader, `tini` as PID 1 of jobs, and `pycriu` to read images.

    <cache>/criu-<version>-<digest of the packages>/
        bin/criu         shell script that starts libexec/criu through lib/ld-linux-*
        bin/nft          likewise; undoes the network lock of a CRIU that was killed
        bin/tini         statically linked
        lib/  libexec/   the libraries, and the programs themselves
        python/          pycriu (protobuf comes from the environment)
        toolchain.json   versions, and the SHA-256 of every file: written last, so its presence means complete
    <cache>/tini-<digest of the program>/tini
        what jobs run: part of every snapshot by its path, which therefore must not change with CRIU's

Called by the agent and the embedded engine at start, by `doctor`, and by tests. `ensure_toolchain` builds what is
missing, `find_toolchain` only looks.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import msgspec

from cedana_sched.model.errors import CedanaSchedError, UsageError
from cedana_sched.snapshot.debian import DebianPackagesError, DebianSuite, Package, extract
from cedana_sched.snapshot.rlimits import rlimit_preload

MINIMUM_VERSION = (4, 2, 1)
"""Older ones give up on inet sockets since Linux 6.16 (`sockets: Can't get 1:16 opt: Operation not supported`)."""

SYSTEM_CRIU_VARIABLE = "CEDANA_SCHED_CRIU"
"""Environment variable that names a CRIU of this machine to be used instead of Debian's."""

_SUITE = "testing"
_PROGRAMS = ("criu", "nftables", "tini-static")
_MARKER = "toolchain.json"
_LAYOUT = 2  # of the folder; one laid by an older release is made again
_PRELOAD_VARIABLE = "CEDANA_SCHED_CRIU_PRELOAD"
_LAUNCHER = f"""\
#!/bin/sh
# Starts the program of the same name in libexec with the libraries beside it, whatever this machine's own are.
name=$(basename -- "$0")
root=$(CDPATH= cd -- "$(dirname -- "$0")/.." && pwd -P) || exit 127
exec "$root"/lib/ld-linux-*.so.* --library-path "$root/lib" \\
    ${{{_PRELOAD_VARIABLE}:+--preload "${_PRELOAD_VARIABLE}"}} --argv0 "$name" "$root/libexec/$name" "$@"
"""

Progress = Callable[[str], None]
"""Told in one short sentence what is being done, for a person who waits."""


class ToolchainError(CedanaSchedError):
    """CRIU is not usable on this machine; the remedy says what to install."""


@dataclass(frozen=True)
class Toolchain:
    """A CRIU that is ready to run, and the programs that belong to it."""

    version: str
    criu: Path
    tini: Path
    """Statically linked; its path is the same on every machine whose cache lies in the same place."""
    nft: Path
    pycriu: Path
    """Folder that holds the Python package `pycriu`: put it on `sys.path`."""
    preload: Path | None = None
    """Shared object that CRIU needs on a machine without CAP_SYS_RESOURCE, else None (see `rlimits`)."""
    gzip: Path | None = None
    """A `gzip` that does not compress, where CRIU cannot use this process's own (see `stored_gzip`)."""

    def environment(self) -> dict[str, str]:
        """The environment to start `criu` with."""
        if self.preload is None:
            return dict(os.environ)
        bundled = (self.criu.parent.parent / _MARKER).exists()
        variable = _PRELOAD_VARIABLE if bundled else "LD_PRELOAD"
        return os.environ | {variable: str(self.preload)}


class _Marker(msgspec.Struct, frozen=True):
    layout: int
    version: str
    packages: dict[str, str]
    files: dict[str, str]


def default_cache_dir() -> Path:
    """`$XDG_CACHE_HOME/cedana-sched`, by default below the home of the user."""
    home = os.environ.get("XDG_CACHE_HOME")
    return (Path(home) if home else Path.home() / ".cache") / "cedana-sched"


def find_toolchain(cache_dir: Path | None = None) -> Toolchain | None:
    """The toolchain that is already on this machine, verified file by file (about 30 ms), or None.

    Raises:
        UsageError: `CEDANA_SCHED_CRIU` names something that is no CRIU, or one that is too old.
        ToolchainError: `CEDANA_SCHED_CRIU` is fine, but tini or pycriu are missing.
    """
    cache = cache_dir or default_cache_dir()
    if system := os.environ.get(SYSTEM_CRIU_VARIABLE):
        return _system_toolchain(Path(system), cache)
    folders = [folder for folder in cache.glob("criu-*") if _is_intact(folder)]
    if not folders:
        return None
    return _open(max(folders, key=lambda folder: (folder / _MARKER).stat().st_mtime), cache)


def ensure_toolchain(cache_dir: Path | None = None, progress: Progress | None = None) -> Toolchain:
    """The toolchain, made from Debian's packages first if this machine has none (about 8 s, 20 MB of download).

    Safe to call from several processes at once: one builds, the others wait for it.

    Raises:
        DebianPackagesError: packages cannot be had; says which and why.
        ToolchainError: they can, but what came out of them does not run here.
        UsageError: `CEDANA_SCHED_CRIU` is set to something that cannot be used.
    """
    cache = cache_dir or default_cache_dir()
    if found := find_toolchain(cache):
        return found
    cache.mkdir(parents=True, exist_ok=True)
    with _exclusive(cache / "toolchain.lock"):
        return find_toolchain(cache) or _open(_build(cache, progress or (lambda _: None)), cache)


def _build(cache: Path, progress: Progress) -> Path:
    with tempfile.TemporaryDirectory(prefix=".toolchain-", dir=cache) as name:
        work = Path(name)
        progress(f"reading the package index of Debian {_SUITE}")
        suite = DebianSuite(_SUITE, work / "apt")
        packages = suite.packages(*_PROGRAMS, "python3-pycriu")  # first, to name what is not served
        libraries = [name for name in suite.closure(*_PROGRAMS) if name.startswith("lib")]
        packages += suite.packages(*libraries)
        progress(f"downloading CRIU and its libraries ({len(packages)} packages)")
        for file in suite.download(packages, work / "packages"):
            extract(file, work / "extracted")
        progress("laying CRIU into its folder")
        _lay(work / "extracted", work / "folder")
        return _publish(work / "folder", packages, cache)


def _lay(extracted: Path, folder: Path) -> None:
    """Copy from unpacked packages what CRIU really loads; most libraries of the closure are not among it."""
    for name in ("bin", "lib", "libexec", "python"):
        (folder / name).mkdir(parents=True)
    loader = _only(extracted, "usr/lib*/ld-linux-*.so.*", "usr/lib/*/ld-linux-*.so.*")
    search = ":".join(str(path) for path in [*extracted.glob("usr/lib/*-linux-gnu*"), extracted / "usr/lib"])
    for name in ("criu", "nft"):
        program = _only(extracted, f"usr/sbin/{name}", f"usr/bin/{name}")
        for library in _libraries(program, loader, search):
            shutil.copy(library, folder / "lib" / library.name)
        shutil.copy(program, folder / "libexec" / name)
        (folder / "bin" / name).write_text(_LAUNCHER)
        (folder / "bin" / name).chmod(0o755)
    shutil.copy(loader, folder / "lib" / loader.name)
    shutil.copy(_only(extracted, "usr/bin/tini-static"), folder / "bin" / "tini")
    shutil.copytree(_only(extracted, "usr/lib/python3/dist-packages/pycriu"), folder / "python" / "pycriu")


def _libraries(program: Path, loader: Path, search: str) -> list[Path]:
    listed = subprocess.run(
        [loader, "--library-path", search, "--list", program], capture_output=True, text=True, check=False
    )
    if listed.returncode:
        raise ToolchainError(
            f"a library that {program.name} is linked to is in none of the packages it depends on",
            remedy="report this: Debian's packages have changed",
            evidence=tuple((listed.stdout + listed.stderr).splitlines()),
        )
    return [Path(found) for found in re.findall(r"^\s*\S+ => (/\S+)", listed.stdout, re.MULTILINE)]


def _publish(folder: Path, packages: list[Package], cache: Path) -> Path:
    """Give the finished folder its name in one step; whoever sees the name sees all of it."""
    identity = "\n".join(f"{p.name} {p.version} {p.sha256}" for p in sorted(packages, key=lambda p: p.name))
    version = _criu_version(folder / "bin" / "criu")
    marker = _Marker(_LAYOUT, version, {p.name: p.version for p in packages}, _digests(folder))
    (folder / _MARKER).write_bytes(msgspec.json.format(msgspec.json.encode(marker)))
    target = cache / f"criu-{version}-{hashlib.sha256(identity.encode()).hexdigest()[:12]}"
    shutil.rmtree(target, ignore_errors=True)  # only a damaged one can be there: an intact one would have been found
    folder.rename(target)
    return target


def _open(folder: Path, cache: Path) -> Toolchain:
    marker = msgspec.json.decode((folder / _MARKER).read_bytes(), type=_Marker)
    tini = _tini_by_digest(folder / "bin" / "tini", cache)
    return Toolchain(
        version=marker.version,
        criu=folder / "bin" / "criu",
        tini=tini,
        nft=folder / "bin" / "nft",
        pycriu=folder / "python",
        preload=rlimit_preload(cache),
    )


def _tini_by_digest(tini: Path, cache: Path) -> Path:
    content = tini.read_bytes()
    target = cache / f"tini-{hashlib.sha256(content).hexdigest()[:12]}" / "tini"
    if not target.exists() or target.read_bytes() != content:
        target.parent.mkdir(exist_ok=True)
        with tempfile.TemporaryDirectory(dir=target.parent) as work:
            copied = Path(shutil.copy(tini, work))
            copied.replace(target)
    return target


def _is_intact(folder: Path) -> bool:
    try:
        marker = msgspec.json.decode((folder / _MARKER).read_bytes(), type=_Marker)
        return marker.layout == _LAYOUT and _digests(folder) == marker.files
    except (OSError, msgspec.MsgspecError):
        return False  # half made or damaged: built again


def _digests(folder: Path) -> dict[str, str]:
    files = sorted(path for path in folder.rglob("*") if path.is_file() and path.name != _MARKER)
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in files
        if path.suffix != ".pyc"  # Python writes them beside pycriu's modules when it first imports them
    }


def _system_toolchain(criu: Path, cache: Path) -> Toolchain:
    version = _criu_version(criu)
    if tuple(int(part) for part in version.split(".")) < MINIMUM_VERSION:
        minimum = ".".join(map(str, MINIMUM_VERSION))
        raise UsageError(
            SYSTEM_CRIU_VARIABLE, str(criu), f"is CRIU {version}",
            remedy=f"name CRIU {minimum} or newer, or unset the variable to have Debian's fetched",
        )  # fmt: skip
    tini = shutil.which("tini-static") or shutil.which("tini")
    nft = shutil.which("nft")
    pycriu = next((p for p in Path("/usr/lib").glob("python3*/*-packages/pycriu")), None)
    if tini is None or nft is None or pycriu is None:
        missing = "tini" if tini is None else "nft" if nft is None else "pycriu"
        raise ToolchainError(
            f"{SYSTEM_CRIU_VARIABLE} is set, but this machine has no {missing}",
            remedy=f"install {missing} (Debian: tini, nftables, python3-pycriu), or unset {SYSTEM_CRIU_VARIABLE}",
        )
    return Toolchain(version, criu, Path(tini), Path(nft), pycriu.parent, rlimit_preload(cache))


def _criu_version(criu: Path) -> str:
    try:
        done = subprocess.run([criu, "--version"], capture_output=True, text=True, check=False, timeout=30)
    except OSError as error:
        raise UsageError(
            SYSTEM_CRIU_VARIABLE, str(criu), f"cannot be started: {error.strerror}", remedy="name the criu program"
        ) from error
    found = re.search(r"^Version: (\d+(?:\.\d+)*)", done.stdout, re.MULTILINE)
    if not found:
        raise ToolchainError(
            f"{criu} does not run on this machine",
            remedy="report this with the lines below",
            evidence=tuple((done.stdout + done.stderr).splitlines()),
        )
    return found.group(1)


def _only(root: Path, *patterns: str) -> Path:
    for pattern in patterns:
        for path in sorted(root.glob(pattern)):
            return path
    raise DebianPackagesError(
        f"Debian's packages no longer hold {patterns[0]}", remedy="report this: their layout has changed"
    )


@contextmanager
def _exclusive(path: Path) -> Iterator[None]:
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
