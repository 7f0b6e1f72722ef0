"""Downloads package files of a Debian suite, without touching this machine's own packages.

A fresh machine of any Debian release runs CRIU from the suite that ships a recent one. `apt-get` itself downloads and
verifies the signatures, with state, cache and sources of its own, so that neither the machine's package lists nor its
installed packages change. The mirror is the machine's own.

With the digest of a package file no index is needed (`download_from`): any archive that has the file will do.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path, PurePosixPath

from cedana_sched.model.errors import CedanaSchedError

_KEYRINGS = (
    Path("/usr/share/keyrings/debian-archive-keyring.gpg"),
    Path("/usr/share/keyrings/debian-archive-keyring.pgp"),
)
_APT_HELPER = "/usr/lib/apt/apt-helper"
_TOOLS = ("apt-get", "apt-cache", _APT_HELPER, "dpkg-deb", "dpkg")
_APT_TIMEOUT_SECONDS = 300
_DOWNLOAD_OPTIONS = (
    "--option=APT::Sandbox::User=root",  # the folder may lie under a home that no other user can enter
    "--option=Acquire::Retries=1",
    "--option=Acquire::http::Timeout=20",
    "--option=Acquire::https::Timeout=20",
)
_FETCH_FAILED = "E: Failed to fetch "
_ENGLISH = {"LC_ALL": "C.UTF-8"}
_MIRROR_LIST = "mirror+file:"


class DebianPackagesError(CedanaSchedError):
    """Package files are unavailable; the evidence is apt's own output."""


@dataclass(frozen=True)
class Package:
    """A package in the suite's signed index."""

    name: str
    version: str
    file: str
    """Path in the archive, such as `pool/main/c/criu/criu_4.2.1-1_amd64.deb`."""
    sha256: str

    def download_path_in(self, folder: Path) -> Path:
        """Return where `download_from` puts the file."""
        return folder / PurePosixPath(self.file).name

    def is_downloaded_in(self, folder: Path) -> bool:
        """Return whether the file is in a folder, with the expected content."""
        try:
            return hashlib.sha256(self.download_path_in(folder).read_bytes()).hexdigest() == self.sha256
        except FileNotFoundError:
            return False


class DebianSuite:
    """A private apt over one suite, kept in `folder` (its own; may be deleted afterwards)."""

    def __init__(self, suite: str, folder: Path) -> None:
        """Fetch the suite's signed index from the first of the machine's mirrors that serves it.

        Raises:
            DebianPackagesError: no apt, no keyring, no Debian mirror, or no mirror serves the suite.
        """
        require_tools()
        self._suite = suite
        self._folder = folder
        self.mirror = ""
        """Base URL of the mirror that serves the suite."""
        self._environment = os.environ | {"APT_CONFIG": str(folder / "apt.conf")} | _ENGLISH
        self._write_configuration()
        self._update()

    @property
    def index_date(self) -> datetime:
        """Return the index's own date (UTC)."""
        [release] = (self._folder / "state" / "lists").glob("*Release")
        [date] = re.findall(r"^Date: (.+) (?:UTC|GMT|[+]0000)$", release.read_text(encoding="utf-8"), re.MULTILINE)
        return datetime.strptime(date, "%a, %d %b %Y %H:%M:%S").replace(tzinfo=UTC)

    def names_with_dependencies(self, *names: str) -> list[str]:
        """Return the names of `names` and of all their dependencies.

        Raises:
            DebianPackagesError: one of `names` or a dependency is not served.
        """
        plan = self._run_apt("apt-get", "install", "--simulate", "--yes", *names)
        return sorted(line.split()[1] for line in plan.splitlines() if line.startswith("Inst "))

    def look_up_packages(self, *names: str) -> list[Package]:
        """Return version and digest of each, from the signed index.

        Raises:
            DebianPackagesError: naming those that the suite does not serve.
        """
        records = self._run_apt("apt-cache", "show", "--no-all-versions", *names, tolerate_failure=True)
        found = [_parse_record(record) for record in records.split("\n\n") if record.strip()]
        missing = set(names) - {package.name for package in found}
        if missing:
            raise DebianPackagesError(
                f"Debian {self._suite} as served to this machine has no package {', '.join(sorted(missing))}",
                remedy="check that the mirror in /etc/apt is complete for this architecture",
            )
        return found

    def download(self, packages: list[Package], into: Path) -> list[Path]:
        """Download the packages' files into `into`, each verified by the signed index.

        Raises:
            DebianPackagesError: naming the file that is unavailable or does not match.
        """
        into.mkdir(parents=True, exist_ok=True)
        self._run_apt("apt-get", "download", *(f"{p.name}={p.version}" for p in packages), cwd=into)
        return [_checked_file(package, into) for package in packages]

    def _write_configuration(self) -> None:
        state, cache = self._folder / "state", self._folder / "cache"
        (state / "lists" / "partial").mkdir(parents=True)
        (cache / "archives" / "partial").mkdir(parents=True)
        (self._folder / "status").touch()
        settings = {
            "Dir::State": state,
            "Dir::State::status": self._folder / "status",
            "Dir::Cache": cache,
            "Dir::Etc::sourcelist": self._folder / "suite.sources",
            "Dir::Etc::sourceparts": "/dev/null",
            "Dir::Etc::preferences": "/dev/null",
            "Dir::Etc::preferencesparts": "/dev/null",
            "APT::Install-Recommends": "false",
            "APT::Sandbox::User": "root",  # the folder may lie under a home that no other user can enter
            "APT::Update::Error-Mode": "any",
            "Acquire::Languages": "none",
            "Acquire::Retries": "3",
        }
        lines = [f'{key} "{value}";' for key, value in settings.items()]
        (self._folder / "apt.conf").write_text("\n".join(lines) + "\n")

    def _update(self) -> None:
        architecture = machine_architecture()
        failures: list[str] = []
        for mirror in debian_mirrors():
            (self._folder / "suite.sources").write_text(
                f"Types: deb\nURIs: {mirror}\nSuites: {self._suite}\nComponents: main\n"
                f"Architectures: {architecture}\nSigned-By: {archive_keyring()}\n"
            )
            try:
                self._run_apt("apt-get", "update")
            except DebianPackagesError as error:
                failures.extend(error.evidence)
            else:
                self.mirror = mirror
                return
        raise DebianPackagesError(
            f"no package mirror of this machine serves Debian {self._suite}",
            remedy="check the network and the Debian entries in /etc/apt, then `apt-get update`",
            evidence=tuple(failures),
        )

    def _run_apt(self, *command: str, cwd: Path | None = None, tolerate_failure: bool = False) -> str:
        return _run(*command, environment=self._environment, cwd=cwd, tolerate_failure=tolerate_failure)


def debian_mirrors() -> list[str]:
    """Return the base URLs of the Debian archives in this machine's apt configuration, in its own order.

    Labels are known only after the machine's first `apt-get update`; before that, every archive is a candidate whose
    suite is not named as a security or vendor one.
    """
    output = _run("apt-get", "indextargets", "--format", "$(REPO_URI)|$(LABEL)|$(RELEASE)|$(COMPONENT)")
    mirrors: dict[str, None] = {}
    for line in output.splitlines():
        address, label, release, component = line.split("|")
        unknown = label in {"", "$(LABEL)"} and not release.endswith("-security")
        if component == "main" and (label == "Debian" or unknown):
            mirrors[address] = None
    if not mirrors:
        raise DebianPackagesError(
            "this machine's apt has no Debian mirror",
            remedy="add one to /etc/apt/sources.list.d, or install CRIU 4.2.1 or newer and set CEDANA_SCHED_CRIU to it",
        )
    return list(mirrors)


def machine_architecture() -> str:
    """Return Debian's name of this machine's architecture, such as `amd64`."""
    return _run("dpkg", "--print-architecture").strip()


def expand_mirror_lists(mirrors: Iterable[str]) -> list[str]:
    """Return base URLs for files: a list of mirrors in a file is replaced by its entries.

    Raises:
        DebianPackagesError: apt's configuration names a list that cannot be read.
    """
    addresses: dict[str, None] = {}
    for mirror in mirrors:
        if mirror.startswith(_MIRROR_LIST):
            addresses |= dict.fromkeys(_read_mirror_list(Path(mirror.removeprefix(_MIRROR_LIST).rstrip("/"))))
        else:
            addresses[mirror] = None
    return list(addresses)


def download_from(archive: str, packages: Sequence[Package], into: Path) -> list[str]:
    """Download package files by their paths below an archive's base URL; only complete files remain in `into`.

    Each is verified by its digest, so that the archive need not be trusted.

    Returns:
        apt's reasons for the missing ones.
    """
    into.mkdir(parents=True, exist_ok=True)
    wanted: list[str] = []
    for package in packages:
        wanted += (
            f"{archive.rstrip('/')}/{package.file}",
            str(package.download_path_in(into)),
            f"SHA256:{package.sha256}",
        )
    failures: list[str] = []
    try:
        _run(_APT_HELPER, *_DOWNLOAD_OPTIONS, "download-file", *wanted, environment=os.environ | _ENGLISH)
    except DebianPackagesError as error:
        failures = [line for line in error.evidence if line.startswith(_FETCH_FAILED)] or [error.message]
    for package in packages:
        if not package.is_downloaded_in(into):
            package.download_path_in(into).unlink(missing_ok=True)  # the partial download
    return failures


def extract_package(package_file: Path, into: Path) -> None:
    """Unpack a package's files below `into`; nothing of the package is run."""
    _run("dpkg-deb", "--extract", str(package_file), str(into))


def _read_mirror_list(file: Path) -> list[str]:
    try:
        lines = file.read_text(encoding="utf-8").splitlines()
    except OSError as error:
        raise DebianPackagesError(
            f"the list of mirrors {file} cannot be read: {error.strerror}",
            remedy="correct the Debian entries in /etc/apt",
        ) from error
    return [line.split()[0] for line in lines if line.strip() and not line.startswith("#")]


def _parse_record(record: str) -> Package:
    fields = dict(line.split(": ", 1) for line in record.splitlines() if ": " in line and line[0] != " ")
    return Package(fields["Package"], fields["Version"], fields["Filename"], fields["SHA256"])


def _checked_file(package: Package, folder: Path) -> Path:
    version = package.version.replace(":", "%3a")
    found = sorted(folder.glob(f"{package.name}_{version}_*.deb"))
    if not found:
        raise DebianPackagesError(
            f"apt did not download package {package.name} {package.version}",
            remedy="try again; if it persists, the mirror in /etc/apt is incomplete",
        )
    if hashlib.sha256(found[0].read_bytes()).hexdigest() != package.sha256:
        raise DebianPackagesError(
            f"the file of package {package.name} is not the one that the signed index names",
            remedy="try again; if it persists, the mirror or a proxy in between damages files",
        )
    return found[0]


def require_tools() -> None:
    """Require apt and dpkg on this machine.

    Raises:
        DebianPackagesError: one of their programs is missing, with its name.
    """
    missing = [tool for tool in _TOOLS if shutil.which(tool) is None]
    if missing:
        raise DebianPackagesError(
            f"CRIU is made from Debian's packages, but this machine has no {', '.join(missing)}",
            remedy="install CRIU 4.2.1 or newer by other means and set CEDANA_SCHED_CRIU to its path",
        )


def archive_keyring() -> Path:
    """Return the keyring for Debian's package indexes.

    Raises:
        DebianPackagesError: this machine has none.
    """
    for keyring in _KEYRINGS:
        if keyring.exists():
            return keyring
    raise DebianPackagesError(
        "the keys that sign Debian's package index are not on this machine",
        remedy="apt-get install debian-archive-keyring",
    )


def _run(
    *command: str,
    environment: dict[str, str] | None = None,
    cwd: Path | None = None,
    tolerate_failure: bool = False,
) -> str:
    try:
        done = subprocess.run(
            command, env=environment, cwd=cwd, capture_output=True, text=True, timeout=_APT_TIMEOUT_SECONDS,
            stdin=subprocess.DEVNULL, check=False,
        )  # fmt: skip
    except subprocess.TimeoutExpired as error:
        raise DebianPackagesError(
            f"{' '.join(command[:2])} did not end within {_APT_TIMEOUT_SECONDS} s",
            remedy="check the network, then try again",
        ) from error
    if done.returncode and not tolerate_failure:
        raise DebianPackagesError(
            f"{' '.join(command[:2])} failed",
            remedy="read apt's own message below",
            evidence=tuple((done.stdout + done.stderr).splitlines()),
        )
    return done.stdout
