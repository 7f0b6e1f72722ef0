"""Stands in for pynvml (nvidia-ml-py 13.615) by the functions that are called; imported, or copied as `pynvml.py`.

What it reports is `FAKE_NVML` in the environment, as JSON:

    init        the error's number that `nvmlInit` raises
    devices     name, uuid (Latin-1: any bytes), memory, mig (devices, or null for an unused index), lost
    driver      the driver's version; cuda: an int, as NVML has it
    old         texts are bytes, as pynvml returned them before it decoded them
    hangs, dies, prints   the name of the function in which the library does so
"""

from __future__ import annotations

import functools
import json
import os
import signal
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

NVML_ERROR_NOT_SUPPORTED = 3
NVML_ERROR_NO_PERMISSION = 4
NVML_ERROR_NOT_FOUND = 6
NVML_ERROR_DRIVER_NOT_LOADED = 9
NVML_ERROR_LIBRARY_NOT_FOUND = 12
NVML_ERROR_GPU_IS_LOST = 15
NVML_ERROR_LIB_RM_VERSION_MISMATCH = 18
NVML_ERROR_UNKNOWN = 999
NVML_DEVICE_MIG_ENABLE = 1

_TEXTS = {
    NVML_ERROR_NOT_SUPPORTED: "Not Supported",
    NVML_ERROR_NO_PERMISSION: "Insufficient Permissions",
    NVML_ERROR_NOT_FOUND: "Not Found",
    NVML_ERROR_DRIVER_NOT_LOADED: "Driver Not Loaded",
    NVML_ERROR_LIBRARY_NOT_FOUND: "NVML Shared Library Not Found",
    NVML_ERROR_GPU_IS_LOST: "GPU is lost",
    NVML_ERROR_LIB_RM_VERSION_MISMATCH: "RM has detected an NVML/RM version mismatch.",
    NVML_ERROR_UNKNOWN: "Unknown Error",
}


class NVMLError(Exception):
    value: int

    def __init__(self, value: int) -> None:
        super().__init__(value)
        self.value = value

    def __str__(self) -> str:
        return _TEXTS.get(self.value, f"NVML Error with code {self.value}")


def _settings() -> dict[str, Any]:
    settings: dict[str, Any] = json.loads(os.environ["FAKE_NVML"])
    return settings


def _call(function: Callable[..., Any]) -> Callable[..., Any]:
    """Misbehave as set, and decode as pynvml does: strictly."""

    @functools.wraps(function)
    def wrapper(*args: Any) -> Any:
        settings = _settings()
        if settings.get("hangs") == function.__name__:
            signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM, signal.SIGINT})
            time.sleep(600)
        if settings.get("dies") == function.__name__:
            os.kill(os.getpid(), signal.SIGSEGV)
        if settings.get("prints") == function.__name__:
            os.write(1, b"NVRM: something is odd\n")
        result = function(*args)
        return result.decode() if isinstance(result, bytes) and not settings.get("old") else result

    return wrapper


@_call
def nvmlInit() -> None:  # noqa: N802 - its name
    if number := _settings().get("init"):
        raise NVMLError(number)


@_call
def nvmlSystemGetDriverVersion() -> bytes:  # noqa: N802
    return str(_settings().get("driver", "580.95.05")).encode("latin-1")


@_call
def nvmlSystemGetCudaDriverVersion_v2() -> int:  # noqa: N802
    return int(_settings().get("cuda", 13000))


@_call
def nvmlDeviceGetCount() -> int:  # noqa: N802
    return len(_settings().get("devices", ()))


@_call
def nvmlDeviceGetHandleByIndex(index: int) -> dict[str, Any]:  # noqa: N802
    device: dict[str, Any] = _settings()["devices"][index]
    if device.get("lost"):
        raise NVMLError(NVML_ERROR_GPU_IS_LOST)
    return device


@_call
def nvmlDeviceGetName(device: dict[str, Any]) -> bytes:  # noqa: N802
    return _text(device, "name")


@_call
def nvmlDeviceGetUUID(device: dict[str, Any]) -> bytes:  # noqa: N802
    return _text(device, "uuid")


def _text(device: dict[str, Any], key: str) -> bytes:
    if key not in device:
        raise NVMLError(NVML_ERROR_UNKNOWN)
    return str(device[key]).encode("latin-1")


@_call
def nvmlDeviceGetMemoryInfo(device: dict[str, Any]) -> SimpleNamespace:  # noqa: N802
    if "memory" not in device:
        raise NVMLError(NVML_ERROR_NOT_SUPPORTED)
    return SimpleNamespace(total=device["memory"], free=0, used=0)


@_call
def nvmlDeviceGetMigMode(device: dict[str, Any]) -> list[int]:  # noqa: N802
    if "mig" not in device:
        raise NVMLError(NVML_ERROR_NOT_SUPPORTED)
    return [NVML_DEVICE_MIG_ENABLE, NVML_DEVICE_MIG_ENABLE]


@_call
def nvmlDeviceGetMaxMigDeviceCount(device: dict[str, Any]) -> int:  # noqa: N802
    return len(device["mig"])


@_call
def nvmlDeviceGetMigDeviceHandleByIndex(device: dict[str, Any], index: int) -> dict[str, Any]:  # noqa: N802
    partition: dict[str, Any] | None = device["mig"][index]
    if partition is None:
        raise NVMLError(NVML_ERROR_NOT_FOUND)
    return partition
