"""The services of a machine: runit directories, as `runsvdir` in the machine supervises them.

A service that ends is started again by runit, as systemd would; how often it ended is kept, so that whoever waits for
it hears of a death at once.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

DIRECTORY = "etc/service"
LOGS = "/var/log"


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
    log = f"{LOGS}/{service.name}.log"
    _script(folder / "finish", f'echo "ended with status $1" | tee -a {LOGS}/{service.name}.deaths >>{log}\n')
    if service.starts_with_machine:
        (folder / "down").unlink(missing_ok=True)
    else:
        (folder / "down").touch()


def deaths(logs: Path, name: str) -> int:
    """How often a service has ended since `forget_deaths`; `logs` is the machine's, seen from outside."""
    try:
        return len((logs / f"{name}.deaths").read_text().splitlines())
    except FileNotFoundError:
        return 0


def forget_deaths(logs: Path, name: str) -> None:
    """Count from nought again, as after a wanted restart."""
    (logs / f"{name}.deaths").unlink(missing_ok=True)


def _script(path: Path, text: str) -> None:
    path.write_text(f"#!/bin/sh\n{text}")
    path.chmod(0o755)
