"""Prints the machine's GPUs as JSON (`model.gpus.Gpus`), read through NVML, the library of NVIDIA's driver.

A program, `python -m cedana_sched.snapshot.nvml_query ROOT`, because a broken driver may hang or crash its caller. ROOT
is where the host's files are: the library belongs to the driver, and a container has none.
"""

from __future__ import annotations

import ctypes
import os
import stat
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import product
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from cedana_sched.model.gpus import MOST_GPUS, MOST_MIG_DEVICES, Gpu, Gpus, MigDevice

_LIBRARY = "libnvidia-ml.so.1"
_DRIVER_ROOTS = ("", "run/nvidia/driver", "home/kubernetes/bin/nvidia")
"""Of the host itself, of NVIDIA's GPU operator, and of GKE's nodes."""
_FOLDERS = ("usr/lib/x86_64-linux-gnu", "usr/lib/aarch64-linux-gnu", "usr/lib64", "usr/lib", "lib64")

T = TypeVar("T")


def load_library(root: Path) -> None:
    """Load the library by path, unless the loader finds it: pynvml then finds it by its name, as already loaded."""
    with suppress(OSError):
        ctypes.CDLL(_LIBRARY)
        return
    for path in (root / driver / folder / _LIBRARY for driver, folder in product(_DRIVER_ROOTS, _FOLDERS)):
        with suppress(OSError):
            if _is_only_root_writable(path):
                ctypes.CDLL(str(path))
                return


def _is_only_root_writable(path: Path) -> bool:
    """Whether root alone can write the library, and exchange it or a folder on its path: its code runs as root here.

    Raises:
        OSError: there is none.
    """
    found = path.resolve(strict=True)
    facts = [one.stat() for one in (found, *found.parents)]
    return all(one.st_uid == 0 and (not one.st_mode & 0o022 or one.st_mode & stat.S_ISVTX) for one in facts)


def read_gpus() -> Gpus:
    """Read what the driver reports. What it does not support is left out."""
    try:
        import pynvml  # noqa: PLC0415 - takes its time
    except ImportError as error:
        return Gpus(problem=f"the package nvidia-ml-py is missing: {error}")
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        return Gpus(problem=_describe_error(pynvml, error))
    return _NvmlQuery(pynvml).query_gpus()


def _describe_error(pynvml: Any, error: Exception) -> str:
    words = {
        pynvml.NVML_ERROR_LIBRARY_NOT_FOUND: f"the driver's library {_LIBRARY} is not found",
        pynvml.NVML_ERROR_DRIVER_NOT_LOADED: "the driver is not loaded",
        pynvml.NVML_ERROR_NO_PERMISSION: "this user may not use the driver",
        pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH: "the driver and its library are of different versions",
    }
    value = getattr(error, "value", None)
    return words.get(value) or f"the driver reports {str(error).removesuffix('.')!r}"


class _NvmlQuery:
    """The calls of an initialized NVML."""

    def __init__(self, pynvml: Any) -> None:
        self._nvml = pynvml
        self._problems: list[str] = []

    def query_gpus(self) -> Gpus:
        nvml = self._nvml
        devices = tuple(self._query_devices())
        version = self._call_or_default(nvml.nvmlSystemGetCudaDriverVersion_v2, 0)
        return Gpus(
            devices=devices,
            driver=self._read_text(nvml.nvmlSystemGetDriverVersion),
            cuda=f"{version // 1000}.{version % 1000 // 10}" if version > 0 else "",
            problem="; ".join(self._problems),
        )

    def _query_devices(self) -> Iterator[Gpu]:
        nvml = self._nvml
        try:
            count = nvml.nvmlDeviceGetCount()
        except nvml.NVMLError as error:
            self._problems.append(_describe_error(nvml, error))
            return
        if count > MOST_GPUS:
            self._problems.append(f"the driver reports {count} GPUs, of which {MOST_GPUS} are named")
        for index in range(min(count, MOST_GPUS)):
            try:
                device = nvml.nvmlDeviceGetHandleByIndex(index)
            except nvml.NVMLError as error:
                self._problems.append(f"GPU {index}: {_describe_error(nvml, error)}")
            else:
                yield Gpu(*self._read_device_fields(device), mig_devices=tuple(self._mig_devices(device)))

    def _mig_devices(self, device: object) -> Iterator[MigDevice]:
        nvml = self._nvml
        current, _ = self._call_or_default(lambda: nvml.nvmlDeviceGetMigMode(device), (0, 0))
        if current != nvml.NVML_DEVICE_MIG_ENABLE:
            return
        most = self._call_or_default(lambda: nvml.nvmlDeviceGetMaxMigDeviceCount(device), 0)
        for index in range(min(most, MOST_MIG_DEVICES)):
            with suppress(nvml.NVMLError):  # not found: each index may be unused
                yield MigDevice(*self._read_device_fields(nvml.nvmlDeviceGetMigDeviceHandleByIndex(device, index)))

    def _read_device_fields(self, device: object) -> tuple[str, str, int | None]:
        nvml = self._nvml
        name = self._read_text(lambda: nvml.nvmlDeviceGetName(device))
        uuid = self._read_text(lambda: nvml.nvmlDeviceGetUUID(device))
        return name, uuid, self._call_or_default(lambda: int(nvml.nvmlDeviceGetMemoryInfo(device).total), None)

    def _read_text(self, call: Callable[[], str | bytes]) -> str:
        """Return a text of the driver, which may be any bytes: pynvml decodes them strictly, its older versions not."""
        try:
            text = call()
        except self._nvml.NVMLError:
            return ""
        except UnicodeDecodeError as error:
            text = error.object
        return text.decode(errors="replace") if isinstance(text, bytes) else text

    def _call_or_default(self, call: Callable[[], T], default: T) -> T:
        try:
            return call()
        except self._nvml.NVMLError:
            return default


def main() -> int:
    answer = os.dup(1)
    os.dup2(2, 1)  # the driver's library may print as well
    load_library(Path(sys.argv[1]))
    try:
        gpus = read_gpus()
    except Exception as error:  # noqa: BLE001 - a fake or broken library may raise anything
        gpus = Gpus(problem=f"NVML cannot be used: {error!r}")
    with os.fdopen(answer, "wb") as output:
        output.write(msgspec.json.encode(gpus))
    return 0


if __name__ == "__main__":
    sys.exit(main())
