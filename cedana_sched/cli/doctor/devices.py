"""Checks of GPUs, and of the disk of the state directory."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import psutil

from cedana_sched.cli import units
from cedana_sched.cli.doctor.findings import Finding, Level

SCARCE_BYTES = 1 << 30


def gpus(devices: Path = Path("/dev")) -> Iterator[Finding]:
    """Check for GPUs, which this version cannot snapshot."""
    if (devices / "nvidiactl").exists():
        says = "an NVIDIA GPU is here; a job that uses it cannot be frozen by this version, and keeps running"
        yield Finding("gpu", Level.WARN, says, "submit such jobs without a checkpoint id")
    elif shutil.which("nvidia-smi"):
        says = "nvidia-smi is installed, but the driver is not loaded (no /dev/nvidiactl)"
        yield Finding("gpu", Level.WARN, says, "load the driver, or ignore this on a machine without a GPU")
    else:
        yield Finding("gpu", Level.OK, "none")


def disk(directory: Path) -> Iterator[Finding]:
    """Check free space for state, logs and staged snapshots; a staged snapshot is as large as the job's memory."""
    place = next(folder for folder in (directory, *directory.absolute().parents) if folder.exists())
    free, memory = shutil.disk_usage(place).free, psutil.virtual_memory().total
    says = f"{units.size(free)} free at {place}; this machine has {units.size(memory)} of memory"
    if free < SCARCE_BYTES:
        yield Finding("disk", Level.FAIL, says, "make room, or choose another --state-dir")
    elif free < memory:
        yield Finding("disk", Level.WARN, says, "a job as large as the memory would not fit when it is restored")
    else:
        yield Finding("disk", Level.OK, says)
