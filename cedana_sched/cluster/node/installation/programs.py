"""Our programs on a host: one folder per version, and a link that names the one in use.

    PROGRAMS/bin -> versions/DIGEST/bin       `cedana-runtime`, which containerd starts
    PROGRAMS/versions/DIGEST/                 criu/, python/, handler/, bin/

The digest covers the folder's whole content, so two agents of one version agree, and damage shows. A running handler
keeps using its own folder; the previous version is kept for it.
"""

from __future__ import annotations

import hashlib
import os
import shlex
import shutil
import tempfile
from pathlib import Path

import cedana_sched
from cedana_sched.cluster.node.installation.interpreter import compile_folder, copy_interpreter
from cedana_sched.model.errors import UsageError
from cedana_sched.runtime_handler.finished_container import build_success_program
from cedana_sched.snapshot.criu_toolchain import SYSTEM_CRIU_VARIABLE, Toolchain

HANDLER = "bin/cedana-runtime"
GZIP = "bin/gzip"
_PRELOAD_VARIABLE = "CEDANA_SCHED_CRIU_PRELOAD"
_KEPT = 2


class Programs:
    """Our folder on a host.

    Args:
        folder: as the host sees it, like `/opt/cedana-sched`.
        here: the same folder as the agent sees it.
        state: our folder on the host's /run, as the host sees it.
    """

    def __init__(self, folder: Path, here: Path, state: Path) -> None:
        self._folder = folder
        self._here = here
        self._state = state

    @property
    def handler(self) -> Path:
        """The program that containerd starts, as the host sees it; the same path for every version."""
        return self._folder / HANDLER

    def write_version(self, toolchain: Toolchain, runc: Path) -> Path:
        """Write the present version, unless it exists; return its folder as the host sees it.

        Args:
            toolchain: with a relocatable CRIU.
            runc: of the host.

        Raises:
            UsageError: the toolchain's CRIU belongs to this machine.
        """
        versions = self._here / "versions"
        versions.mkdir(mode=0o755, parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".new-", dir=versions) as work:
            made = Path(work) / "made"
            words = _write_parts(made, toolchain)
            digest = _digest(made, f"{self._folder} {self._state} {runc} {os.environ.get(_PRELOAD_VARIABLE)}")
            target = versions / digest
            folder = self._folder / "versions" / digest
            _write_launchers(made, folder, words, runc, self._state, toolchain)
            if not (target.exists() and _digest(target, "") == _digest(made, "")):
                shutil.rmtree(target, ignore_errors=True)  # damaged: an intact one would have matched
                made.chmod(0o755)
                made.rename(target)
        return folder

    def activate_version(self, version: Path) -> None:
        """Activate a version atomically, and remove all others but the previous one."""
        link = self._here / "bin"
        before = link.readlink().parts[1:2] if link.is_symlink() else ()
        fresh = self._here / ".bin"
        fresh.unlink(missing_ok=True)
        fresh.symlink_to(Path("versions", version.name, "bin"))
        fresh.rename(link)
        kept = {version.name, *before}
        others = [path for path in (self._here / "versions").iterdir() if path.name not in kept]
        for path in sorted(others, key=lambda path: path.stat().st_mtime, reverse=True)[_KEPT - len(kept) :]:
            shutil.rmtree(path, ignore_errors=True)

    def remove(self, runc: Path | None = None) -> None:
        """Remove everything; `runc` takes the handler's place, for containers that still need a program there."""
        if runc is not None:
            farewell = self._here / "versions/runc/bin"
            farewell.mkdir(parents=True, exist_ok=True)
            (farewell / self.handler.name).unlink(missing_ok=True)
            (farewell / self.handler.name).symlink_to(runc)
            self.activate_version(self._folder / "versions/runc")
            for version in (self._here / "versions").iterdir():
                if version.name != "runc":
                    shutil.rmtree(version, ignore_errors=True)
        else:
            shutil.rmtree(self._here, ignore_errors=True)


def _write_parts(folder: Path, toolchain: Toolchain) -> list[str]:
    """Write everything but the launchers; return the words that start the interpreter, relative to its folder."""
    source = Path(cedana_sched.__file__).parent
    package = folder / "handler/cedana_sched"
    ignored = shutil.ignore_patterns("__pycache__", "*.sh")
    shutil.copytree(source / "runtime_handler", package / "runtime_handler", ignore=ignored)
    (package / "__init__.py").touch()
    (folder / "bin").mkdir()
    finished = folder / "bin/finished"
    finished.write_bytes(build_success_program())
    finished.chmod(0o755)
    criu = toolchain.criu.parent.parent
    if not (criu / "toolchain.json").exists():
        raise UsageError(
            SYSTEM_CRIU_VARIABLE, str(toolchain.criu), "cannot be installed on other machines",
            remedy="unset the variable: the agent brings a CRIU along that can",
        )  # fmt: skip
    shutil.copytree(criu, folder / "criu", ignore=ignored)
    if toolchain.preload:
        shutil.copy(toolchain.preload, folder / "criu/preload.so")
    words = copy_interpreter(folder / "python")
    compile_folder(folder / "handler")
    return words


def _write_launchers(made: Path, folder: Path, words: list[str], runc: Path, state: Path, toolchain: Toolchain) -> None:
    python = _python_command(words)
    gzip = made / GZIP
    gzip.write_text(
        f"#!/bin/sh\nhere={shlex.quote(str(folder))}\n"
        f"exec {python} -I -S -B $here/handler/cedana_sched/runtime_handler/stored_gzip.py\n"
    )
    gzip.chmod(0o755)
    preload = str(folder / "criu/preload.so") if toolchain.preload else os.environ.get(_PRELOAD_VARIABLE)
    text = Path(cedana_sched.__file__).parent.joinpath("runtime_handler/launcher.sh").read_text()
    for place, value in {
        "@HERE@": shlex.quote(str(folder)),
        "@RUNC@": shlex.quote(str(runc)),
        "@STATE@": shlex.quote(str(state)),
        "@PYTHON@": python,
        "@EXPORTS@": f"export {_PRELOAD_VARIABLE}={shlex.quote(preload)}" if preload else "",
    }.items():
        text = text.replace(place, value)
    launcher = made / HANDLER
    launcher.write_text(text)
    launcher.chmod(0o755)


def _python_command(words: list[str]) -> str:
    """Return the shell command that starts the interpreter, below `$here`."""
    loader, libraries, program_ = (f"$here/python/{word}" for word in words)
    return f'"{loader}" --library-path "{libraries}" --argv0 "{program_}" "{program_}"'


def _digest(folder: Path, more: str) -> str:
    """Return the digest of all files but compiled ones, which differ from one compilation to the next."""
    digest = hashlib.sha256(more.encode())
    for path in sorted(path for path in folder.rglob("*") if path.is_file() and path.suffix != ".pyc"):
        content = hashlib.sha256(path.read_bytes()).hexdigest()
        digest.update(f"{path.relative_to(folder)} {path.stat().st_mode & 0o777:o} {content}\n".encode())
    return digest.hexdigest()[:12]
