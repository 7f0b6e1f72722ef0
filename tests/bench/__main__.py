"""Measure the engine against plain CRIU, tar and zstd, side by side in one run: `make bench`.

    python -m tests.bench [--mebibytes 2048] [--folder /var/tmp] [--write docs/bench.md]

Absolute times belong to the machine; the ratios are what to keep. Everything runs alone, one after the other.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from cedana_sched.snapshot.toolchain import Toolchain, ensure_toolchain
from cedana_sched.store.location import StorageConfig
from tests.bench.hog import plain_hog
from tests.bench.ours import ours
from tests.bench.page import replace_measured
from tests.bench.plain import by_hand, discarded_dump, write_seconds
from tests.bench.report import Measurement, machine, table
from tests.servers.versitygw import running


def measure(place: str, toolchain: Toolchain, folder: Path, mebibytes: int, storage: StorageConfig) -> Measurement:
    """One store, from the limits of the machine to the engine."""
    _say(f"{place}: what the machine can do")
    discard = discarded_dump(toolchain, folder / "discard", mebibytes)
    _say(f"{place}: by hand")
    hand = by_hand(toolchain, folder / "hand", mebibytes, storage)
    _say(f"{place}: the engine")
    home = folder / "engine"
    home.mkdir()
    uri, options, keys = _as_arguments(storage)
    os.environ |= keys  # the engine inherits them
    result = asyncio.run(ours(home, mebibytes, uri, options))
    return Measurement(place, result, hand, discard, write_seconds(result.first.stored_bytes, folder, storage))


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
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()))
    parser.add_argument("--write", type=Path, help="a page whose marked part is to be replaced")
    arguments = parser.parse_args()
    toolchain = ensure_toolchain(progress=_say)
    measurements = []
    with tempfile.TemporaryDirectory(prefix="bench-", dir=arguments.folder) as name:
        folder = Path(name)
        _say("warming up the memory")
        warm_up(folder / "warm", arguments.mebibytes)
        with places(folder) as found:
            for place, storage in found:
                home = folder / place[:2]
                home.mkdir()
                measurements.append(measure(place, toolchain, home, arguments.mebibytes, storage))
    text = f"{machine()}\n\n{table(measurements, arguments.mebibytes)}\n"
    print(text)
    if arguments.write:
        replace_measured(arguments.write, text)


def _as_arguments(storage: StorageConfig) -> tuple[str, tuple[str, ...], dict[str, str]]:
    """The store as the engine's command line and environment take it."""
    if storage.s3 is None or storage.s3.secret_key is None:
        return str(storage.path), (), {}
    s3 = storage.s3
    keys = {"AWS_ACCESS_KEY_ID": s3.access_key or "", "AWS_SECRET_ACCESS_KEY": storage.s3.secret_key.get_secret_value()}
    return f"s3://{s3.bucket}/{s3.prefix}", ("--s3-endpoint", s3.endpoint or "", "--s3-allow-http"), keys


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    subprocess.run(["sync"], check=True)
    main()
