"""How fast the store takes a process's memory: bytes, seconds, CPU and peak memory, for two generations and a restore.

    python -m tests.bench.store_rate [--gib 2] [--s3] [--folder /var/tmp] [--compression auto] [--sealed 3]

Half of the pages are random, half are text; the second generation changes every twentieth page, scattered. Each step
runs in a process of its own, so that its peak memory is its own. The bytes come from a file in the page cache, through
a pipe, as from CRIU. `limit` is what the place takes in from one plain writer, with fsync. `--sealed` repeats all of it
so often without and with sealing, by turns, and ends with the CPU-seconds per GiB of each step, at the median.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import msgspec

from cedana_sched.model.identity import Identity, SnapshotRef
from cedana_sched.store.snapshot_store import SnapshotStore
from cedana_sched.store.storage_config import StorageConfig
from tests.servers.sealing import new_keys
from tests.servers.snapshots import metadata
from tests.servers.versitygw import running

WORKLOAD = Identity("bench", "memory")
PAGE = 4096
READ_BYTES = 1 << 20


class Step(msgspec.Struct, frozen=True):
    """What one step cost."""

    name: str
    seconds: float
    cpu_seconds: float
    peak_rss_mib: float
    read_bytes: int = 0
    new_bytes: int = 0
    stored_bytes: int = 0


def write_memory(path: Path, size: int) -> None:
    source = random.Random(1)
    text = (b"step %d energy -1234.5 kJ/mol " * 200)[:PAGE]
    with path.open("wb") as file:
        for number in range(size // (2 * PAGE)):
            file.write(source.randbytes(PAGE))
            file.write((b"%012d" % number) + text[12:])


def change_pages(path: Path) -> None:
    source = random.Random(2)
    with path.open("r+b") as file:
        for page in source.sample(range(path.stat().st_size // PAGE), path.stat().st_size // PAGE // 20):
            file.seek(page * PAGE)
            file.write(source.randbytes(PAGE))


def write_generation(name: str, store: SnapshotStore, memory: Path) -> Step:
    begun = time.monotonic()
    with store.begin(WORKLOAD, checkpoint_uid=str(time.time_ns())) as writer:
        source, sink = os.pipe()
        feeder = threading.Thread(target=_feed, args=(memory, sink))
        feeder.start()
        buffer = memoryview(bytearray(READ_BYTES))
        with writer.open_stream("pages-1.img") as stream:
            while length := os.readv(source, [buffer]):
                stream.write(buffer[:length])
        feeder.join()
        os.close(source)
        manifest = writer.commit(metadata(writer.checkpoint_uid))
    stats = manifest.summary.stats
    return _step(name, begun, stats.read_bytes, stats.new_bytes, stats.stored_bytes)


def _feed(memory: Path, sink: int) -> None:
    with memory.open("rb") as file:
        while os.splice(file.fileno(), sink, READ_BYTES):
            pass
    os.close(sink)


def stage(store: SnapshotStore, ref: SnapshotRef, folder: Path) -> Step:
    begun = time.monotonic()
    with tempfile.TemporaryDirectory(dir=folder) as target:
        store.open_snapshot(ref).stage(Path(target))
        return _step("stage", begun)


def plain_write(memory: Path, folder: Path) -> Step:
    begun = time.monotonic()
    with memory.open("rb") as source, tempfile.TemporaryFile(dir=folder) as sink:
        while data := source.read(READ_BYTES):
            sink.write(data)
        sink.flush()
        os.fsync(sink.fileno())
    return _step("limit", begun, memory.stat().st_size)


def _step(name: str, begun: float, read: int = 0, new: int = 0, stored: int = 0) -> Step:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return Step(
        name,
        round(time.monotonic() - begun, 3),
        round(usage.ru_utime + usage.ru_stime, 2),
        round(usage.ru_maxrss / 1024, 1),
        read,
        new,
        stored,
    )


def run_apart(action: str, config: StorageConfig, arguments: argparse.Namespace, memory: Path) -> Step:
    """One step in a fresh process; the configuration goes through a pipe, because it holds keys."""
    command = [sys.executable, "-m", "tests.bench.store_rate", "--step", action, "--folder", arguments.folder]
    command += ["--memory", str(memory), "--compression", arguments.compression]
    done = subprocess.run(
        command, input=json.dumps(config.dump_with_secrets()).encode(), stdout=subprocess.PIPE, check=True
    )
    return msgspec.json.decode(done.stdout, type=Step)


def do_step(arguments: argparse.Namespace) -> Step:
    config = StorageConfig.load(json.load(sys.stdin))
    memory, folder = Path(arguments.memory), Path(arguments.folder)
    if arguments.step == "limit":
        return plain_write(memory, folder)
    store = SnapshotStore.open(config, compression=arguments.compression)
    if arguments.step == "stage":
        latest = store.latest_snapshot_of(WORKLOAD)
        assert latest is not None
        return stage(store, latest.ref, folder)
    return write_generation(arguments.step, store, memory)


def measure(config: StorageConfig, arguments: argparse.Namespace, memory: Path) -> list[Step]:
    write_memory(memory, int(arguments.gib * (1 << 30)))
    steps = [run_apart(action, config, arguments, memory) for action in ("limit", "first", "stage")]
    change_pages(memory)
    return steps + [run_apart(action, config, arguments, memory) for action in ("second", "stage")]


def compare(arguments: argparse.Namespace, folder: Path) -> None:
    """Without and with sealing, by turns, so that what else the machine does falls on both."""
    keys = new_keys(folder)
    costs: dict[tuple[str, str], list[float]] = {}
    for turn in range(arguments.sealed):
        for label, key_file in (("plain", None), ("sealed", keys)):
            config = StorageConfig(path=folder / f"store-{turn}-{label}", key_file=key_file)
            names = ("limit", "first", "stage", "second", "stage of the second")
            for name, step in zip(names, measure(config, arguments, folder / "memory"), strict=True):
                print(label, msgspec.json.encode(step).decode(), flush=True)
                costs.setdefault((name, label), []).append(step.cpu_seconds / arguments.gib)
            shutil.rmtree(config.path or folder)
    for (name, label), seconds in sorted(costs.items()):
        print(f"{name:20} {label:7} {statistics.median(seconds):.2f} CPU-seconds per GiB of {sorted(seconds)}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--gib", type=float, default=2.0)
    parser.add_argument("--s3", action="store_true")
    parser.add_argument("--folder", default=tempfile.gettempdir())
    parser.add_argument("--compression", default="auto")
    parser.add_argument("--sealed", type=int, default=0, metavar="TIMES")
    parser.add_argument("--step", help=argparse.SUPPRESS)
    parser.add_argument("--memory", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.step:
        sys.stdout.buffer.write(msgspec.json.encode(do_step(arguments)))
        return
    with tempfile.TemporaryDirectory(dir=arguments.folder) as name:
        folder = Path(name)
        memory = folder / "memory"
        if arguments.sealed:
            compare(arguments, folder)
            return
        if arguments.s3:
            with running(folder) as server:
                steps = measure(server.new_bucket(), arguments, memory)
        else:
            steps = measure(StorageConfig(path=folder / "store"), arguments, memory)
    for step in steps:
        print(msgspec.json.encode(step).decode())


if __name__ == "__main__":
    main()
