"""A machine's NVIDIA GPUs, in the driver's words: informational, as no snapshot contains the state of a GPU."""

from __future__ import annotations

from typing import Final

import msgspec

MOST_GPUS: Final = 32
MOST_MIG_DEVICES: Final = 8
"""Of each GPU; NVIDIA's have 7 at most. Others are not named."""


class MigDevice(msgspec.Struct, frozen=True, omit_defaults=True):
    """A partition of a GPU; `memory_bytes` is None if unknown."""

    name: str = ""
    uuid: str = ""
    memory_bytes: int | None = None


class Gpu(MigDevice, frozen=True, omit_defaults=True):
    """A whole GPU, with its partitions if it is in MIG mode."""

    mig_devices: tuple[MigDevice, ...] = ()


class Gpus(msgspec.Struct, frozen=True, omit_defaults=True):
    """All GPUs of a machine. Without a loaded driver, all fields are empty."""

    devices: tuple[Gpu, ...] = ()
    driver: str = ""
    cuda: str = ""
    """Newest version of CUDA that the driver supports."""
    problem: str = ""
    """Why devices are missing, in plain words."""
