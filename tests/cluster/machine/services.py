"""The services of a machine: runit directories, as `runsvdir` in the machine supervises them.

A service that ends is started again by runit, as systemd would. Each end is written to a file among the machine's logs,
which the host sees as well, so that whoever waits for a service hears of its death at once.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tests.cluster.machine.cgroups import remove_tree

DIRECTORY = "etc/service"
LOGS = "/var/log"
DEATHS = "deaths"
"""Folder among the logs: a file for each service that has ended, with a line for each time."""
_LAST_LINES = 60
_TELLING = re.compile(r"^(error|fatal|panic)\b|^[EF]\d{4} |\blevel=(error|fatal)\b", re.IGNORECASE)


@dataclass(frozen=True)
class Service:
    """One long-running program of a machine.

    Args:
        name: of the service and of its log `<name>.log`.
        command: the program, by its path in the machine, and its arguments.
        environment: variables laid over the machine's.
        starts_with_machine: False for one that `sv up` starts when what it needs is there.
    """

    name: str
    command: Sequence[str]
    environment: Mapping[str, str] = field(default_factory=dict)
    starts_with_machine: bool = True


def write(root: Path, service: Service) -> None:
    """Lay a service into a machine's root; `root` is the writable layer, seen from outside."""
    folder = root / DIRECTORY / service.name
    folder.mkdir(parents=True, exist_ok=True)
    exports = "".join(f"export {name}={shlex.quote(value)}\n" for name, value in service.environment.items())
    _script(
        folder / "run",
        f"exec >>{LOGS}/{service.name}.log 2>&1\n{exports}exec {shlex.join(service.command)}\n",
    )
    log, deaths = f"{LOGS}/{service.name}.log", f"{LOGS}/{DEATHS}/{service.name}"
    _script(folder / "finish", f'echo "ended with status $1" | tee -a {deaths} >>{log}\n')
    if service.starts_with_machine:
        (folder / "down").unlink(missing_ok=True)
    else:
        (folder / "down").touch()


def have_started(root: Path, services: Sequence[Service]) -> bool:
    """Whether runit supervises all of them by now, so that `sv` can be told what to do with them."""
    return all((root / DIRECTORY / service.name / "supervise" / "ok").exists() for service in services)


def prepare(root: Path, logs: Path, services: Sequence[Service]) -> None:
    """Lay all services into a machine that is off, and count their deaths from nought."""
    remove_tree(logs / DEATHS)
    (logs / DEATHS).mkdir(parents=True)
    for service in services:
        remove_tree(root / DIRECTORY / service.name / "supervise")  # of an earlier boot
        write(root, service)


def has_died(logs: Path, name: str) -> bool:
    """Whether a service has ended since the machine booted or the service was last started on purpose."""
    return (logs / DEATHS / name).exists()


def forget_deaths(logs: Path, name: str) -> None:
    """Count from nought again, as before a wanted start."""
    (logs / DEATHS / name).unlink(missing_ok=True)


def last_words(log: Path) -> str:
    """The line of a log that tells best why its service has ended: the last that calls itself an error, or the last."""
    try:
        lines = [line.strip() for line in log.read_text(errors="replace").splitlines()]
    except FileNotFoundError:
        return "it has no log"
    said = [line for line in lines if line and not line.startswith("ended with status")]
    telling = [line for line in said[-_LAST_LINES:] if _TELLING.search(line)]
    return (telling or said or ["it said nothing"])[-1]


def _script(path: Path, text: str) -> None:
    path.write_text(f"#!/bin/sh\n{text}")
    path.chmod(0o755)
