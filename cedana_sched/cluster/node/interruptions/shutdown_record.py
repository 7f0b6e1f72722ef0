"""Which shutdown of its node an agent has announced, and which record of the kubelet is from an earlier boot.

A machine's end leaves the kubelet's record of a shutdown without an end. The clock does not say in which boot it
began: it may be wrong at boot, and be set later. But the kubelet starts no pod while it shuts down, so whatever the
first agent finds after a boot is from an earlier one.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

import msgspec
import structlog

from cedana_sched.model.objects.node_interruption import NodeInterruption
from cedana_sched.runtime_handler.atomic_write import write_atomically

log = structlog.get_logger(__name__)

_MOST_BYTES: Final = 4096


class ShutdownRecord(msgspec.Struct, frozen=True):
    """Shutdowns are named by their begin, as the kubelet writes it."""

    boot: str
    """Id of the boot in which this was written."""
    earlier: str
    """Begin of the shutdown that the first agent of the boot found in the kubelet's record."""
    announced: str = ""
    """Begin of the announced shutdown; empty if there is none."""
    notice: NodeInterruption | None = None
    """Its notice."""


def read_boot_id(proc: Path) -> str:
    """Return the id of the machine's boot.

    Raises:
        OSError: it is not readable.
    """
    return (proc / "sys/kernel/random/boot_id").read_text().strip()


def read_record(path: Path) -> ShutdownRecord | None:
    """Return what an agent has written; None if there is nothing, or nothing that can be read."""
    try:
        with path.open("rb") as file:
            return msgspec.json.decode(file.read(_MOST_BYTES), type=ShutdownRecord)
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        log.warning("the record of announced shutdowns is not readable", path=str(path), error=str(error))
        return None


def write_record(path: Path, record: ShutdownRecord) -> None:
    """Replace the record; durable on return.

    Raises:
        OSError: it is not written.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, msgspec.json.encode(record))
