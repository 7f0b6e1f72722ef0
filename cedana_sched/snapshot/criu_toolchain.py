"""The bundled CRIU and its installation.

Distributions ship CRIU too old for current kernels (before 4.2.1 every process with an inet socket fails to dump since
Linux 6.16), so package files of Debian testing are installed into one relocatable folder: CRIU, its libraries with
their own dynamic loader, `tini` as PID 1 of jobs, and `pycriu` to read images. The files are pinned (`package_pins`); a
machine that cannot get them uses what Debian has signed today, unless the caller forbids it.

    <cache>/criu-<version>-<digest of the packages>/
        bin/criu         shell script that runs libexec/criu through lib/ld-linux-*
        bin/nft          likewise; undoes the network lock of a CRIU that was killed
        bin/tini         statically linked
        lib/  libexec/   the libraries, and the programs themselves
        python/          pycriu (protobuf comes from the environment)
        toolchain.json   versions, and the SHA-256 of every file and package: written last, so it means complete
    <cache>/toolchain-missed
        the pinned packages that were unavailable while another version's toolchain could be used instead
    <cache>/tini-<digest of the program>/tini
        PID 1 of jobs: part of every snapshot by its path, which therefore must not change with CRIU's

`ensure_toolchain` builds a missing toolchain, `find_toolchain` only searches.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

import msgspec

from cedana_sched.model.errors import CedanaSchedError, UsageError
from cedana_sched.snapshot.debian import DebianPackagesError, Package, extract_package
from cedana_sched.snapshot.package_pins import identity_of_packages, pinned_identities
from cedana_sched.snapshot.packages import Progress, obtain_packages
from cedana_sched.snapshot.rlimit_workaround import rlimit_preload

MINIMUM_VERSION = (4, 2, 1)
"""Older versions fail on inet sockets since Linux 6.16 (`sockets: Can't get 1:16 opt: Operation not supported`)."""

SYSTEM_CRIU_VARIABLE = "CEDANA_SCHED_CRIU"
"""Environment variable with the path of a CRIU of this machine, to be used instead of Debian's."""

OLDER_REMEDY = "let this machine reach Debian's packages, and run 'cedana-sched doctor --prepare'"
"""For use of another version's toolchain, because this version's could not be built."""

_MARKER = "toolchain.json"
_MISSED = "toolchain-missed"
_LAYOUT = 2  # Version of the folder's layout; a folder of an older layout is rebuilt.
_PRELOAD_VARIABLE = "CEDANA_SCHED_CRIU_PRELOAD"
_LAUNCHER = f"""\
#!/bin/sh
# Starts the program of the same name in libexec with the libraries beside it, whatever this machine's own are.
name=$(basename -- "$0")
root=$(CDPATH= cd -- "$(dirname -- "$0")/.." && pwd -P) || exit 127
exec "$root"/lib/ld-linux-*.so.* --library-path "$root/lib" \\
    ${{{_PRELOAD_VARIABLE}:+--preload "${_PRELOAD_VARIABLE}"}} --argv0 "$name" "$root/libexec/$name" "$@"
"""


class ToolchainError(CedanaSchedError):
    """CRIU is not usable on this machine; the remedy names what to install."""


class Origin(StrEnum):
    """Origin of a toolchain's packages."""

    PINNED = "pinned"
    SERVED = "served"
    """Packages that Debian served when the pinned ones were unavailable."""
    OLDER = "older"
    """Packages of another version of this product."""
    MACHINE = "machine"
    """No packages: this machine's own CRIU."""


@dataclass(frozen=True)
class Toolchain:
    """A usable CRIU with its companion programs."""

    version: str
    criu: Path
    tini: Path
    """Statically linked; its path is the same on every machine with the same cache path."""
    nft: Path
    pycriu: Path
    """Folder of the Python package `pycriu`: put it on `sys.path`."""
    preload: Path | None = None
    """Shared object that CRIU needs on a machine without CAP_SYS_RESOURCE, else None (see `rlimit_workaround`)."""
    gzip: Path | None = None
    """A `gzip` that does not compress, where CRIU cannot use this process's own (see `stored_gzip`)."""
    origin: Origin = Origin.MACHINE

    def criu_environment(self) -> dict[str, str]:
        """Return the environment for `criu`."""
        if self.preload is None:
            return dict(os.environ)
        bundled = (self.criu.parent.parent / _MARKER).exists()
        variable = _PRELOAD_VARIABLE if bundled else "LD_PRELOAD"
        return os.environ | {variable: str(self.preload)}


class _Marker(msgspec.Struct, frozen=True):
    layout: int
    version: str
    packages: dict[str, str]
    """Their versions."""
    files: dict[str, str]
    digests: dict[str, str] = {}
    """SHA-256 of the packages."""
    pinned_then: frozenset[str] = frozenset()
    """`pinned_identities` at build time, even if the packages are others, because those were unavailable."""


def default_cache_dir() -> Path:
    """Return `$XDG_CACHE_HOME/cedana-sched`, by default below the user's home."""
    home = os.environ.get("XDG_CACHE_HOME")
    return (Path(home) if home else Path.home() / ".cache") / "cedana-sched"


def find_toolchain(cache_dir: Path | None = None) -> Toolchain | None:
    """Return this machine's existing toolchain, verified file by file (about 30 ms), or None.

    Of several the one from pinned packages is preferred, then the newest.

    Raises:
        UsageError: `CEDANA_SCHED_CRIU` is not a CRIU, or one that is too old.
        ToolchainError: `CEDANA_SCHED_CRIU` is fine, but tini or pycriu are missing.
    """
    cache = cache_dir or default_cache_dir()
    if system := os.environ.get(SYSTEM_CRIU_VARIABLE):
        return _system_toolchain(Path(system), cache)
    folders = [folder for folder in cache.glob("criu-*") if _is_intact(folder)]
    if not folders:
        return None
    preferred = max(folders, key=lambda one: (_origin(one) is Origin.PINNED, (one / _MARKER).stat().st_mtime))
    return _load_toolchain(preferred, cache)


def ensure_toolchain(
    cache_dir: Path | None = None,
    progress: Progress | None = None,
    *,
    only_pinned: bool = False,
    try_again: bool = False,
) -> Toolchain:
    """Return the toolchain, built from Debian's packages if there is none (some seconds, 20 MB of download).

    A toolchain of another version is used only if none can be built; then there is no further attempt, as long as the
    same packages are pinned, so that a machine without access to them starts as fast as any other. Safe in concurrent
    processes: one builds, the others wait for it.

    Args:
        cache_dir: its parent folder; None is `default_cache_dir`.
        progress: called during the build.
        only_pinned: it must be built from the pinned packages.
        try_again: retry even if a previous build failed.

    Raises:
        DebianPackagesError: packages are unavailable; with names and reason.
        ToolchainError: the packages are available, but their CRIU does not run here.
        UsageError: `CEDANA_SCHED_CRIU` is set to something unusable.
    """
    cache = cache_dir or default_cache_dir()
    report = progress or (lambda _: None)

    def will_do(found: Toolchain) -> bool:
        if only_pinned:
            return found.origin is Origin.PINNED
        return found.origin is not Origin.OLDER or (not try_again and _has_unavailable_pins(cache))

    if (found := find_toolchain(cache)) and will_do(found):
        return found
    cache.mkdir(parents=True, exist_ok=True)
    with _exclusive(cache / "toolchain.lock"):
        if (found := find_toolchain(cache)) and will_do(found):
            return found
        try:
            return _load_toolchain(_build(cache, report, only_pinned=only_pinned), cache)
        except (DebianPackagesError, ToolchainError) as error:
            if found is None or only_pinned:
                raise
            (cache / _MISSED).write_text(_pinned_identities_text())
            report(f"{error.message}: CRIU {found.version}, which another version has made, is used from now on")
            return found


def _has_unavailable_pins(cache: Path) -> bool:
    """Return whether the currently pinned packages were unavailable."""
    try:
        return (cache / _MISSED).read_text() == _pinned_identities_text()
    except (OSError, UnicodeDecodeError):
        return False


def _pinned_identities_text() -> str:
    return " ".join(sorted(pinned_identities()))


def _build(cache: Path, progress: Progress, *, only_pinned: bool) -> Path:
    with tempfile.TemporaryDirectory(prefix=".toolchain-", dir=cache) as name:
        work = Path(name)
        obtained = obtain_packages(work, progress, only_pinned=only_pinned)
        for file in obtained.files:
            extract_package(file, work / "extracted")
        progress("laying CRIU into its folder")
        _copy_needed_files(work / "extracted", work / "folder")
        return _publish(work / "folder", obtained.packages, cache)


def _copy_needed_files(extracted: Path, folder: Path) -> None:
    """Copy from unpacked packages what CRIU really loads; most libraries of the closure are not needed."""
    for name in ("bin", "lib", "libexec", "python"):
        (folder / name).mkdir(parents=True)
    loader = _find_first_match(extracted, "usr/lib*/ld-linux-*.so.*", "usr/lib/*/ld-linux-*.so.*")
    search = ":".join(str(path) for path in [*extracted.glob("usr/lib/*-linux-gnu*"), extracted / "usr/lib"])
    for name in ("criu", "nft"):
        program = _find_first_match(extracted, f"usr/sbin/{name}", f"usr/bin/{name}")
        for library in _find_linked_libraries(program, loader, search):
            shutil.copy(library, folder / "lib" / library.name)
        shutil.copy(program, folder / "libexec" / name)
        (folder / "bin" / name).write_text(_LAUNCHER)
        (folder / "bin" / name).chmod(0o755)
    shutil.copy(loader, folder / "lib" / loader.name)
    shutil.copy(_find_first_match(extracted, "usr/bin/tini-static"), folder / "bin" / "tini")
    shutil.copytree(_find_first_match(extracted, "usr/lib/python3/dist-packages/pycriu"), folder / "python" / "pycriu")


def _find_linked_libraries(program: Path, loader: Path, search: str) -> list[Path]:
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


def _publish(folder: Path, packages: Sequence[Package], cache: Path) -> Path:
    """Rename the finished folder atomically, so that its name implies completeness."""
    version = _criu_version(folder / "bin" / "criu")
    marker = _Marker(
        _LAYOUT,
        version,
        {p.name: p.version for p in packages},
        _file_digests(folder),
        {p.name: p.sha256 for p in packages},
        pinned_identities(),
    )
    (folder / _MARKER).write_bytes(msgspec.json.format(msgspec.json.encode(marker)))
    target = cache / f"criu-{version}-{identity_of_packages(packages)}"
    if _is_intact(target):  # built by another version from the same packages; may be in use
        (folder / _MARKER).replace(target / _MARKER)
        return target
    shutil.rmtree(target, ignore_errors=True)  # damaged
    folder.rename(target)
    return target


def _load_toolchain(folder: Path, cache: Path) -> Toolchain:
    return Toolchain(
        version=_read_marker(folder).version,
        criu=folder / "bin" / "criu",
        tini=_copy_tini_to_cache(folder / "bin" / "tini", cache),
        nft=folder / "bin" / "nft",
        pycriu=folder / "python",
        preload=rlimit_preload(cache),
        origin=_origin(folder),
    )


def _origin(folder: Path) -> Origin:
    pinned = pinned_identities()
    if folder.name.rpartition("-")[2] in pinned:
        return Origin.PINNED
    return Origin.SERVED if _read_marker(folder).pinned_then == pinned else Origin.OLDER


def _read_marker(folder: Path) -> _Marker:
    return msgspec.json.decode((folder / _MARKER).read_bytes(), type=_Marker)


def _copy_tini_to_cache(tini: Path, cache: Path) -> Path:
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
        marker = _read_marker(folder)
        return marker.layout == _LAYOUT and _file_digests(folder) == marker.files
    except (OSError, msgspec.MsgspecError):
        return False  # incomplete or damaged: rebuilt


def _file_digests(folder: Path) -> dict[str, str]:
    files = sorted(path for path in folder.rglob("*") if path.is_file() and path.name != _MARKER)
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in files
        if path.suffix != ".pyc"  # Python writes them beside pycriu's modules on first import
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


def _find_first_match(root: Path, *patterns: str) -> Path:
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
