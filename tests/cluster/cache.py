"""What the cluster makes once and keeps: locked while it is made, whole or not there, under the digest of its inputs.

Called by everything that builds: roots, images.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import re
import shutil
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

from cedana_sched.snapshot.criu_toolchain import default_cache_dir
from tests.cluster.errors import ClusterError


def cache_dir() -> Path:
    """Return where all of it lies; the engine's own cache."""
    return default_cache_dir()


def digest(*inputs: object) -> str:
    """Return a short name for what something is made of; `inputs` are what JSON can say."""
    return hashlib.sha256(json.dumps(inputs, sort_keys=True).encode()).hexdigest()[:16]


def fresh_log(name: str) -> Path:
    """Return an empty file for what a program prints while it makes something."""
    log = cache_dir() / "logs" / name
    log.parent.mkdir(parents=True, exist_ok=True)
    log.write_bytes(b"")
    return log


@asynccontextmanager
async def exclusive(name: str) -> AsyncIterator[None]:
    """Be the only one on this machine that does `name`; whoever is killed while it does gives the lock back."""
    locks = cache_dir() / "locks"
    locks.mkdir(parents=True, exist_ok=True)
    process = await asyncio.create_subprocess_exec(
        "flock", "--no-fork", "--exclusive", locks / name, "sh", "-c", "echo; exec cat",
        stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, start_new_session=True,
    )  # fmt: skip
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        if not await process.stdout.readline():
            raise ClusterError(
                f"the lock {locks / name} cannot be taken", remedy="see whether its folder can be written to"
            )
        yield
    finally:
        process.stdin.close()
        if process.returncode is None:
            process.kill()
        await process.wait()


async def made_once(
    target: Path, make: Callable[[Path], Awaitable[None]], *, is_whole: Callable[[Path], bool] = Path.exists
) -> Path:
    """Return `target`, made first where it is missing or damaged.

    Args:
        target: a file or folder in the cache, named after the digest of what it is made of.
        make: makes it at the path that it is given, on the same filesystem; what it leaves there gets the name.
        is_whole: says whether what has the name is worth it.
    """
    if is_whole(target):
        return target
    target.parent.mkdir(parents=True, exist_ok=True)
    async with exclusive(target.name):
        if is_whole(target):
            return target
        partial = target.with_name(f".{target.name}.partial")
        await asyncio.to_thread(_remove, partial)  # left by one that was killed
        try:
            await make(partial)
            await asyncio.to_thread(_remove, target)
            partial.rename(target)
        except BaseException:
            _remove(partial)
            raise
    return target


def forget_older(made: Path, name: str, *, keep: int = 3) -> None:
    """Delete what was made for earlier inputs of `name`; the newest stay, for another checkout or one still at work.

    Args:
        made: `<name>-<digest>` with any suffix.
        name: of what it is.
        keep: how many of this name stay, `made` among them.
    """
    same = re.compile(re.escape(name) + r"-[0-9a-f]{16}" + re.escape(made.suffix))
    found = [path for path in made.parent.iterdir() if path != made and same.fullmatch(path.name)]
    for path in sorted(found, key=lambda path: path.stat().st_mtime, reverse=True)[keep - 1 :]:
        _remove(path)


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
