"""PostgreSQL under pgbench: every transaction that a client saw acknowledged is in the table exactly once.

The table has no unique key on purpose: a row that was written twice must be found, not refused.
"""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import ClassVar

from workloads.packages import PackageError, Packages
from workloads.sequences import sequence_faults
from workloads.workload import Command, PrepareError, Progress, Size, Workload, size_of

_HERE = Path(__file__).parent
_VERSIONS = Path("/usr/lib/postgresql")
_USER = "postgres"
_CLIENTS = 4
_TRANSACTIONS = {Size.BRIEF: 100, Size.TEST: 600, Size.DEMO: 3000}
_SOCKET_PATH_LIMIT = 107
_SOCKET_NAME = ".s.PGSQL.5432"


class Postgresql(Workload):
    """Four clients that insert numbered rows, over a unix socket in the run's directory."""

    name = "postgresql"
    title = "PostgreSQL under pgbench"
    seconds: ClassVar = {Size.BRIEF: 2.5, Size.TEST: 5, Size.DEMO: 20}
    packages = Packages(debian=("postgresql",))

    def write_inputs(self, directory: Path, size: Size) -> None:  # noqa: ARG002 - one data directory for all sizes
        _require_reachable(directory)
        shutil.copy(_HERE / "insert.sql", directory)
        if os.geteuid() == 0:
            shutil.chown(directory, _USER, _USER)
        command = [str(_binaries() / "initdb"), "--pgdata=data", "--auth=trust", "--no-sync", "--encoding=UTF8"]
        user = _USER if os.geteuid() == 0 else None
        done = subprocess.run(
            [*command, "--locale=C"], cwd=directory, user=user, group=user, extra_groups=[] if user else None,
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        if done.returncode:
            raise PrepareError(f"initdb could not make a data directory in {directory}: {done.stderr.strip()}")

    def command(self, directory: Path) -> Command:
        counts = (str(_CLIENTS), str(_TRANSACTIONS[size_of(directory)]))
        argv = (sys.executable, str(_HERE / "program.py"), str(_binaries()), _USER, *counts)
        return Command(argv, directory, {"LC_ALL": "C"})

    def progress(self, directory: Path) -> Progress:
        """Count acknowledged transactions; pgbench writes them in blocks of some hundred."""
        done = sum(path.read_bytes().count(b"\n") for path in directory.glob("acknowledged.*"))
        return Progress(done, _CLIENTS * _TRANSACTIONS[size_of(directory)], "transactions")

    def check(self, directory: Path, reference: Path) -> list[str]:
        """Compare what was acknowledged with what is stored, for each client; pgbench must have seen no error."""
        total = _TRANSACTIONS[size_of(reference)]
        log = [line for path in sorted(directory.glob("acknowledged.*")) for line in path.read_text().splitlines()]
        acknowledged = _by_client(log)
        stored = _by_client(_lines(directory / "ledger.txt"))
        faults = []
        for client in range(_CLIENTS):
            faults += sequence_faults(f"client {client}, acknowledged", acknowledged[client], total)
            faults += sequence_faults(f"client {client}, stored", stored[client], total)
        return faults + _complaints(directory / "pgbench.log")


def _by_client(lines: Iterable[str]) -> defaultdict[int, list[int]]:
    """Both pgbench's log and the table begin a line with the client and its number."""
    numbers = defaultdict[int, list[int]](list)
    for words in (line.split() for line in lines):
        if len(words) >= 2:
            numbers[int(words[0])].append(int(words[1]))
    return numbers


def _complaints(path: Path) -> list[str]:
    text = _lines(path)
    bad = [f"pgbench said: {line}" for line in text if "error" in line.lower() or "aborted" in line]
    if "number of failed transactions: 0 (0.000%)" not in text:
        bad.append("pgbench did not report that no transaction failed")
    return bad


def _lines(path: Path) -> list[str]:
    return path.read_text().splitlines() if path.exists() else []


def _binaries() -> Path:
    found = sorted(_VERSIONS.glob("*/bin"), key=lambda path: int(path.parent.name))
    if not found:
        raise PackageError("postgresql", f"nothing is installed in {_VERSIONS}")
    return found[-1]


def _require_reachable(directory: Path) -> None:
    if len(str(directory / _SOCKET_NAME)) > _SOCKET_PATH_LIMIT:
        raise PrepareError(f"{directory}: too long for a unix socket in it; choose a shorter path")
    if os.geteuid() != 0:
        return
    account = pwd.getpwnam(_USER)
    for parent in directory.absolute().parents:
        status = parent.stat()
        allowed = status.st_mode & 0o001 or (status.st_uid == account.pw_uid and status.st_mode & 0o100)
        if not allowed:
            raise PrepareError(f"{directory}: the user {_USER} cannot pass {parent}; choose a directory below /tmp")
