"""Measure the engine against plain CRIU, tar and zstd, side by side in one run: `make bench`.

    python -m tests.bench [--mebibytes 2048] [--rounds 3] [--folder /var/tmp] [--write docs/bench.md]

Absolute times belong to the machine; the ratios are what to keep. Everything runs alone, one after the other.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from cedana_sched.snapshot.criu_toolchain import Toolchain, ensure_toolchain
from cedana_sched.store.storage_config import StorageConfig
from tests.bench.hog import plain_hog
from tests.bench.ours import ours
from tests.bench.page import replace_measured
from tests.bench.plain import by_hand, discarded_dump, write_seconds
from tests.bench.report import Measurement, Round, machine, table
from tests.servers.sealing import new_keys
from tests.servers.versitygw import running


def measure(toolchain: Toolchain, folder: Path, mebibytes: int, storage: StorageConfig) -> Round:
    """One round on one store, from the limits of the machine to the engine."""
    _say("  what the machine can do")
    discard = discarded_dump(toolchain, folder / "discard", mebibytes)
    _say("  by hand")
    hand = by_hand(toolchain, folder / "hand", mebibytes, storage)
    found = {}
    for name, more in (("plain", ()), ("sealed", ("--key-file", str(new_keys(folder))))):
        _say(f"  the engine: {name}")
        home = folder / name
        home.mkdir()
        uri, options, keys = _as_arguments(storage, f"{folder.name}-{name}")
        os.environ |= keys  # the engine inherits them
        found[name] = asyncio.run(ours(home, mebibytes, uri, (*options, *more)))
    writes = write_seconds(found["plain"].first.stored_bytes, folder, storage)
    return Round(found["plain"], found["sealed"], hand, discard, writes)


def warm_up(folder: Path, mebibytes: int) -> None:
    """Touch the memory once: a virtual machine may get it from its host only now."""
    folder.mkdir()
    with plain_hog(folder, 2 * mebibytes):
        pass


@contextmanager
def places(folder: Path) -> Iterator[list[tuple[str, StorageConfig]]]:
    """A folder of this machine, and a bucket of a server on it."""
    with ExitStack() as stack:
        (folder / "s3").mkdir()
        server = stack.enter_context(running(folder / "s3"))
        yield [("POSIX", StorageConfig(path=folder / "store")), ("S3 (versitygw)", server.new_bucket())]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mebibytes", type=int, default=2048)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()))
    parser.add_argument("--write", type=Path, help="a page whose marked part is to be replaced")
    arguments = parser.parse_args()
    toolchain = ensure_toolchain(progress=_say)
    rounds: dict[str, list[Round]] = {}
    with tempfile.TemporaryDirectory(prefix="bench-", dir=arguments.folder) as name:
        folder = Path(name)
        _say("warming up the memory")
        warm_up(folder / "warm", arguments.mebibytes)
        with places(folder) as found:
            for number in range(arguments.rounds):
                for place, storage in found:
                    _say(f"round {number + 1} of {arguments.rounds}, {place}")
                    home = folder / f"{place[:2]}{number}"
                    home.mkdir()
                    rounds.setdefault(place, []).append(measure(toolchain, home, arguments.mebibytes, storage))
                    shutil.rmtree(home)
    measurements = [Measurement(place, done) for place, done in rounds.items()]
    title = f"{machine()}; median of {arguments.rounds} rounds (lowest to highest)"
    text = f"{title}\n\n{table(measurements, arguments.mebibytes)}\n"
    print(text)
    if arguments.write:
        replace_measured(arguments.write, text)


def _as_arguments(storage: StorageConfig, part: str) -> tuple[str, tuple[str, ...], dict[str, str]]:
    """A part of the store as an engine's command line and environment take it: of others' it would store nothing."""
    if storage.s3 is None or storage.s3.secret_key is None:
        assert storage.path is not None
        path = storage.path / part
        path.mkdir(parents=True)
        return str(path), (), {}
    s3 = storage.s3
    keys = {"AWS_ACCESS_KEY_ID": s3.access_key or "", "AWS_SECRET_ACCESS_KEY": storage.s3.secret_key.get_secret_value()}
    return f"s3://{s3.bucket}/{s3.prefix}{part}", ("--s3-endpoint", s3.endpoint or "", "--s3-allow-http"), keys


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    subprocess.run(["sync"], check=True)
    main()
