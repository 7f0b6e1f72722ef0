"""The Debian and PyPI packages that a workload needs: which are missing, and how they get here.

Debian's go into the system (root); PyPI's into a virtual environment of their own, named after the digest of
the pinned requirements, so that a change of pins makes a new one and an interrupted install is never used.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

EVIDENCE_LINES = 10
SINGLE_THREAD = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": "1"}
"""Variables that keep numerical libraries to one thread, and so to one order of their sums."""

_READY_FILE = "ready"


class PackageError(Exception):
    """A package could not be installed: `package` names it, `evidence` is what the installer said last."""

    def __init__(self, package: str, problem: str, evidence: str = "") -> None:
        super().__init__(f"{package}: {problem}")
        self.package = package
        self.evidence = tuple(evidence.strip().splitlines()[-EVIDENCE_LINES:])


@dataclass(frozen=True)
class Packages:
    """What to install: names of Debian packages, and a file of hashed PyPI requirements."""

    debian: tuple[str, ...] = ()
    requirements: Path | None = None

    def missing(self) -> tuple[str, ...]:
        """Return the names of what is not installed yet; PyPI packages are all named until all are there."""
        absent = [name for name in self.debian if not _is_installed(name)]
        if self.requirements is not None and not _is_ready(self.requirements):
            absent += _requirement_names(self.requirements)
        return tuple(absent)

    def install(self) -> None:
        """Install what is missing.

        Raises:
            PackageError: naming the package that could not be installed.
        """
        absent = [name for name in self.debian if not _is_installed(name)]
        if absent:
            _install_debian(absent)
        if self.requirements is not None and not _is_ready(self.requirements):
            _install_requirements(self.requirements)


NO_PACKAGES = Packages()


def cache_directory() -> Path:
    """Return where environments, inputs and reference runs are kept between runs (`XDG_CACHE_HOME` is obeyed)."""
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "cedana-sched"


def python_of(requirements: Path) -> str:
    """Return the interpreter of the environment made from `requirements`."""
    return str(_environment(requirements) / "bin" / "python")


def _environment(requirements: Path) -> Path:
    digest = hashlib.sha256(f"{sys.version}\n{sys.prefix}\n".encode() + requirements.read_bytes()).hexdigest()
    return cache_directory() / "venvs" / digest[:16]


def _is_ready(requirements: Path) -> bool:
    return (_environment(requirements) / _READY_FILE).exists()


def _requirement_names(requirements: Path) -> list[str]:
    pinned = (line.split("==")[0] for line in requirements.read_text().splitlines() if "==" in line)
    return list(dict.fromkeys(pinned))


def _is_installed(name: str) -> bool:
    query = ["dpkg-query", "--show", "--showformat=${db:Status-Status}", name]
    try:
        answer = subprocess.run(query, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        return False
    return answer.returncode == 0 and answer.stdout == "installed"


def _install_debian(names: list[str]) -> None:
    if shutil.which("apt-get") is None:
        raise PackageError(names[0], "this machine has no apt-get: it is not a Debian system")
    if os.geteuid() != 0:
        raise PackageError(names[0], f"only root can install it: run 'apt-get install {' '.join(names)}'")
    environment = os.environ | {"DEBIAN_FRONTEND": "noninteractive", "LC_ALL": "C"}
    _apt(["update"], environment)  # when it fails an old list may still do; what is missing is named below
    if _apt(["install", "--yes", "--no-install-recommends", *names], environment).returncode == 0:
        return
    for name in names:  # one by one, only to learn which of them it was
        alone = _apt(["install", "--yes", "--no-install-recommends", name], environment)
        if alone.returncode:
            raise PackageError(name, "apt-get could not install this Debian package", alone.stderr or alone.stdout)


def _apt(arguments: list[str], environment: dict[str, str]) -> subprocess.CompletedProcess[str]:
    command = ["apt-get", "--quiet", "--quiet", "-o", "DPkg::Lock::Timeout=120", *arguments]
    return subprocess.run(
        command, env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False
    )


def _install_requirements(requirements: Path) -> None:
    target = _environment(requirements)
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.rmtree(target, ignore_errors=True)
    with tempfile.TemporaryFile(mode="w+") as log:
        for step in _installation_steps(target, requirements):
            done = subprocess.run(step, stdin=subprocess.DEVNULL, stdout=log, stderr=log, check=False)
            if done.returncode:
                log.seek(0)
                raise _pip_failure(requirements, log.read())
    (target / _READY_FILE).touch()


def _installation_steps(target: Path, requirements: Path) -> list[list[str]]:
    pip = [str(target / "bin" / "python"), "-m", "pip", "--disable-pip-version-check", "--no-input"]
    return [
        [sys.executable, "-m", "venv", str(target)],
        [*pip, "install", "--require-hashes", "--only-binary", ":all:", "--requirement", str(requirements)],
    ]


def _pip_failure(requirements: Path, output: str) -> PackageError:
    names = _requirement_names(requirements)
    culprit = next((name for name in names if f"for {name}" in output.lower()), ", ".join(names))
    return PackageError(culprit, f"pip could not install what {requirements.name} names", output)
