"""Which shutdown of its node an agent has announced, and which record of the kubelet is from an earlier boot.

A machine's end leaves the kubelet's record of a shutdown without an end. The clock does not say in which boot it
began: it may be wrong at boot, and be set later. But the kubelet starts no pod while it shuts down, so whatever the
first agent finds after a boot is from an earlier one.
"""

from __future__ import annotations

from collections.abc import Sequence
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


class ShutdownRecords:
    """The record of the present boot, in the first of several files that can be written; the next agent reads it.

    A full disk must not make the next agent take a shutdown that is in progress for an earlier one. So the record is
    kept in memory as well, and a record that is not written is written again by each read.

    Args:
        paths: of the files, those that survive no restart of the machine first: a record is void after one.
    """

    def __init__(self, paths: Sequence[Path]) -> None:
        self._paths = paths
        self._record: ShutdownRecord | None = None
        self._is_written = True

    def read(self, boot: str) -> ShutdownRecord | None:
        """Return the record of this boot; None if there is none that can be read."""
        if self._record is None or self._record.boot != boot:
            found = map(_read_file, self._paths)
            self._record = next((one for one in found if one is not None and one.boot == boot), None)
        elif not self._is_written:
            self._is_written = self._try_to_write(self._record)
        return self._record

    def write(self, record: ShutdownRecord) -> None:
        """Replace the record; durable on return where it can be written at all."""
        self._record, self._is_written = record, self._try_to_write(record)
        if not self._is_written:  # an agent that restarts meanwhile may announce another notice, or none
            log.warning("the shutdown of the node is not recorded", paths=list(map(str, self._paths)))

    def _try_to_write(self, record: ShutdownRecord) -> bool:
        content = msgspec.json.encode(record)
        for path in self._paths:
            try:
                path.parent.mkdir(parents=True, exist_ok=True)
                write_atomically(path, content)
            except OSError as error:
                log.debug("a record of the node's shutdown is not written", path=str(path), error=str(error))
                _remove_stale(path)
            else:
                return True
        return False


def _read_file(path: Path) -> ShutdownRecord | None:
    try:
        with path.open("rb") as file:
            return msgspec.json.decode(file.read(_MOST_BYTES), type=ShutdownRecord)
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        log.warning("the record of announced shutdowns is not readable", path=str(path), error=str(error))
        return None


def _remove_stale(path: Path) -> None:
    """Remove an earlier record, which the next agent would read before the newer one in another file."""
    try:
        path.unlink(missing_ok=True)
    except OSError as error:
        log.warning("an earlier record of a shutdown cannot be removed", path=str(path), error=str(error))
