"""What the driver's library reports, as `model.gpus` has it."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest

from cedana_sched.model.gpus import MOST_GPUS, Gpu, Gpus, MigDevice
from cedana_sched.snapshot import nvml_query
from tests import fake_pynvml

A100: dict[str, Any] = {"name": "NVIDIA A100-SXM4-40GB", "uuid": "GPU-1", "memory": 42949672960}
SLICE: dict[str, Any] = {"name": "NVIDIA A100-SXM4-40GB MIG 1g.5gb", "uuid": "MIG-1", "memory": 5100273664}


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> Any:
    def of(**settings: Any) -> Gpus:
        monkeypatch.setenv("FAKE_NVML", json.dumps(settings))
        monkeypatch.setitem(sys.modules, "pynvml", fake_pynvml)
        return nvml_query.read_gpus()

    return of


def test_gpus_and_their_partitions(read: Any) -> None:
    found = read(devices=[A100, A100 | {"uuid": "GPU-2", "mig": [SLICE, None, SLICE | {"uuid": "MIG-2"}]}], cuda=12080)
    facts = A100["name"], "GPU-1", A100["memory"]
    partitions = tuple(MigDevice(SLICE["name"], uuid, 5100273664) for uuid in ("MIG-1", "MIG-2"))
    assert found.devices == (Gpu(*facts), Gpu(facts[0], "GPU-2", facts[2], mig_devices=partitions))
    assert (found.driver, found.cuda, found.problem) == ("580.95.05", "12.8", "")


def test_a_driver_without_a_gpu(read: Any) -> None:
    assert read(devices=[]) == Gpus(driver="580.95.05", cuda="13.0")


def test_what_a_gpu_does_not_support_is_left_out(read: Any) -> None:
    assert read(devices=[{"name": "NVIDIA GB10"}], cuda=0) == Gpus((Gpu("NVIDIA GB10"),), driver="580.95.05")


@pytest.mark.parametrize(
    ("number", "words"),
    [
        (fake_pynvml.NVML_ERROR_LIBRARY_NOT_FOUND, "library libnvidia-ml.so.1 is not found"),
        (fake_pynvml.NVML_ERROR_DRIVER_NOT_LOADED, "the driver is not loaded"),
        (fake_pynvml.NVML_ERROR_NO_PERMISSION, "this user may not use the driver"),
        (fake_pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH, "different versions"),
        (fake_pynvml.NVML_ERROR_UNKNOWN, "the driver reports 'Unknown Error'"),
        (31, "NVML Error with code 31"),
    ],
)
def test_why_there_are_none(read: Any, number: int, words: str) -> None:
    found = read(init=number)
    assert words in found.problem
    assert found == Gpus(problem=found.problem)


def test_a_lost_gpu_hides_no_other(read: Any) -> None:
    found = read(devices=[A100 | {"lost": True}, A100])
    assert [gpu.uuid for gpu in found.devices] == ["GPU-1"]
    assert found.problem == "GPU 0: the driver reports 'GPU is lost'"


@pytest.mark.parametrize("old", [False, True])
def test_a_name_of_any_bytes(read: Any, *, old: bool) -> None:
    (gpu,) = read(devices=[A100 | {"name": "A\xff100"}], old=old).devices
    assert gpu.name == "A\N{REPLACEMENT CHARACTER}100"


def test_more_gpus_than_any_machine_has(read: Any) -> None:
    found = read(devices=[A100] * (MOST_GPUS + 1))
    assert len(found.devices) == MOST_GPUS
    assert found.problem == "the driver reports 33 GPUs, of which 32 are named"


def test_without_pynvml(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)
    assert "nvidia-ml-py is missing" in nvml_query.read_gpus().problem


def test_a_library_that_others_can_exchange_is_not_loaded(tmp_path: Path) -> None:
    """The agent is root: what it loads runs as root."""
    library = tmp_path / "lib64" / "libnvidia-ml.so.1"
    library.parent.mkdir()
    library.touch(mode=0o644)
    assert nvml_query._is_only_root_writable(library)
    library.chmod(0o664)
    assert not nvml_query._is_only_root_writable(library)
    library.chmod(0o644)
    os.chown(library.parent, 65534, 65534)
    assert not nvml_query._is_only_root_writable(library)
    with pytest.raises(FileNotFoundError):
        nvml_query._is_only_root_writable(tmp_path / "gone")
