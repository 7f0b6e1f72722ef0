"""Every workload runs to its end, agrees with a second run of itself, and notices a result that was tampered with."""

import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from workloads.catalog import WORKLOADS
from workloads.reference import run_uninterrupted
from workloads.workload import Size

Tampering = Callable[[bytes], bytes]


def flip_one_bit(data: bytes) -> bytes:
    middle = len(data) // 2
    return data[:middle] + bytes([data[middle] ^ 1]) + data[middle + 1 :]


def lose_a_line(data: bytes) -> bytes:
    lines = data.splitlines(keepends=True)
    return b"".join(lines[: len(lines) // 2] + lines[len(lines) // 2 + 1 :])


def repeat_a_line(data: bytes) -> bytes:
    lines = data.splitlines(keepends=True)
    return b"".join(lines[: len(lines) // 2] + lines[len(lines) // 2 - 1 :])


BITS: tuple[Tampering, ...] = (flip_one_bit,)
LINES: tuple[Tampering, ...] = (lose_a_line, repeat_a_line)
TAMPERING: dict[str, dict[str, tuple[Tampering, ...]]] = {
    "gromacs": {"md.gro": BITS, "md.trr": BITS, "md.edr": BITS},
    "xgboost": {"model.ubj": BITS, "progress.txt": LINES},
    "numpy": {"final.bin": BITS, "trajectory.bin": BITS, "energies.txt": LINES},
    "mpi": {"rod-0.bin": BITS, "rod-1.bin": BITS, "iterations.log": LINES},
    "threads": {"summary.json": BITS, "thread-3.log": LINES, "child.log": LINES, "shared.log": LINES},
    "tcp": {"received.log": LINES, "answered.log": LINES, "received.digest": BITS},
    "unix": {"received.log": LINES, "answered.log": LINES, "received.digest": BITS},
    "pipe": {"received.log": LINES, "answered.log": LINES, "received.digest": BITS},
    "postgresql": {"ledger.txt": LINES, "acknowledged.*": LINES},
    "redis": {"acknowledged-0.log": LINES, "stored.json": (flip_one_bit,)},
    "memory": {"ticks.log": LINES},
    "timers": {"events.log": LINES},
}


@pytest.fixture(scope="module")
def runs() -> Iterator[Path]:
    """A directory that other users may pass: PostgreSQL does not run as root."""
    with tempfile.TemporaryDirectory(prefix="workloads-") as name:
        Path(name).chmod(0o755)
        yield Path(name)


LONG = {"mpi", "postgresql", "xgboost"}


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=pytest.mark.exhaustive if name in LONG else ()) for name in WORKLOADS
    ],  # they change seldom, and run to the same ends in others
)
def test_a_run_agrees_with_another_and_tampering_is_noticed(name: str, runs: Path) -> None:
    workload = WORKLOADS[name]
    workload.install()
    reference = run_uninterrupted(workload, runs / f"{name}-reference", Size.BRIEF).directory
    second = run_uninterrupted(workload, runs / f"{name}-second", Size.BRIEF).directory
    assert workload.check(second, reference) == []
    progress = workload.progress(second)
    assert progress.done == progress.total

    for pattern, ways in TAMPERING[name].items():
        path = next(iter(sorted(second.glob(pattern))))
        for tamper in ways:
            with tampered(path, tamper):
                assert workload.check(second, reference), f"{tamper.__name__} in {path.name} went unnoticed"
        with tampered(path, None):
            assert workload.check(second, reference), f"{path.name} was removed, unnoticed"
    assert workload.check(second, reference) == []


class tampered:  # noqa: N801 - reads as a sentence
    """While it lasts, a file is changed (or, without a way to change it, removed)."""

    def __init__(self, path: Path, tamper: Tampering | None) -> None:
        self._path = path
        self._kept = path.parents[1] / "kept"
        self._tamper = tamper

    def __enter__(self) -> None:
        shutil.move(self._path, self._kept)
        if self._tamper:
            self._path.write_bytes(self._tamper(self._kept.read_bytes()))

    def __exit__(self, *_: object) -> None:
        shutil.move(self._kept, self._path)
