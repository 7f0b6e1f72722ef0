"""Restores a run: `python -m cedana_sched.local.restorer`, started by the run's supervisor and gone once it runs.

The supervisor is light and stays; this program has what restoring needs (the explanation of CRIU's log, the decoding
of tasks). The restored tree is its child for a moment, and the supervisor's, a subreaper, as soon as it ends.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import msgspec

from cedana_sched.model.errors import CedanaSchedError
from cedana_sched.snapshot.restore import RestoreRequest, restore
from cedana_sched.snapshot.toolchain import Toolchain

_FAILED = 125


class RestoreTask(msgspec.Struct, frozen=True):
    """What the supervisor passes on. `cgroups` is its own addition, the freezer first."""

    toolchain: dict[str, Any]
    request: RestoreRequest
    cgroups: tuple[Path, ...] = ()


class Refusal(msgspec.Struct, frozen=True):
    """The answer when nothing runs."""

    message: str
    remedy: str
    evidence: tuple[str, ...]


def encode_toolchain(toolchain: Toolchain) -> dict[str, Any]:
    """The toolchain as JSON values."""
    found: dict[str, Any] = msgspec.to_builtins(toolchain, enc_hook=str)
    return found


def main() -> int:
    task = msgspec.json.decode(sys.stdin.buffer.read(), type=RestoreTask, dec_hook=_decode)
    toolchain = msgspec.convert(task.toolchain, Toolchain, dec_hook=_decode)
    request = msgspec.structs.replace(task.request, cgroups=task.cgroups)
    try:
        result = restore(toolchain, request)
    except CedanaSchedError as error:
        refusal = Refusal(error.message, error.remedy, error.evidence)
        sys.stdout.buffer.write(msgspec.json.encode(refusal))
        return _FAILED
    print(result.root_pid)
    return 0


def _decode(kind: type, value: object) -> object:
    if kind is Path:
        return Path(str(value))
    raise NotImplementedError(f"a task holds no {kind}")


if __name__ == "__main__":
    sys.exit(main())
