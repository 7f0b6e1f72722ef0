"""Checks of GPUs, and of the disk of the state directory."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Iterator
from pathlib import Path

import psutil

from cedana_sched.cli import units
from cedana_sched.cli.doctor.check_runner import Finding, Level
from cedana_sched.model.gpus import Gpu, Gpus, MigDevice
from cedana_sched.snapshot.gpus import find_gpus

SCARCE_BYTES = 1 << 30


def gpus() -> Iterator[Finding]:
    """Check for GPUs, which this version cannot snapshot."""
    found = asyncio.run(find_gpus())
    if found.devices:
        message = f"an NVIDIA GPU is here{_driver_versions_text(found)}; a job that uses it cannot be frozen by this "
        yield Finding(
            "gpu", Level.WARN, f"{message}version, and keeps running", "submit such jobs without a checkpoint id"
        )
        for gpu in found.devices:
            yield Finding("gpu", Level.OK, _gpu_text(gpu))
    if found.problem:
        message = f"the GPUs of the NVIDIA driver cannot be named: {found.problem}"
        yield Finding(
            "gpu", Level.WARN, message, "see what nvidia-smi says; submit jobs with a GPU without a checkpoint id"
        )
    elif not found.devices:
        yield _no_gpu(found)


def _no_gpu(found: Gpus) -> Finding:
    if found.driver:
        return Finding("gpu", Level.OK, f"none; an NVIDIA driver is loaded{_driver_versions_text(found)}")
    if shutil.which("nvidia-smi"):
        message = "nvidia-smi is installed, but the driver is not loaded (no /dev/nvidiactl)"
        return Finding("gpu", Level.WARN, message, "load the driver, or ignore this on a machine without a GPU")
    return Finding("gpu", Level.OK, "none")


def _driver_versions_text(found: Gpus) -> str:
    known = [f"{name} {version}" for name, version in (("driver", found.driver), ("CUDA", found.cuda)) if version]
    return f" ({', '.join(known)})" if known else ""


def _gpu_text(gpu: Gpu) -> str:
    partitions = "".join(f"; MIG device {_device_text(one)}" for one in gpu.mig_devices)
    return f"{_device_text(gpu)}{partitions}"


def _device_text(device: MigDevice) -> str:
    memory = "memory unknown" if device.memory_bytes is None else units.format_size(device.memory_bytes)
    return f"{device.name or 'of unknown name'} ({memory}, {device.uuid or 'UUID unknown'})"


def disk(directory: Path) -> Iterator[Finding]:
    """Check free space for state, logs and staged snapshots; a staged snapshot is as large as the job's memory."""
    place = next(folder for folder in (directory, *directory.absolute().parents) if folder.exists())
    free, memory = shutil.disk_usage(place).free, psutil.virtual_memory().total
    message = f"{units.format_size(free)} free at {place}; this machine has {units.format_size(memory)} of memory"
    if free < SCARCE_BYTES:
        yield Finding("disk", Level.FAIL, message, "make room, or choose another --state-dir")
    elif free < memory:
        yield Finding("disk", Level.WARN, message, "a job as large as the memory would not fit when it is restored")
    else:
        yield Finding("disk", Level.OK, message)
