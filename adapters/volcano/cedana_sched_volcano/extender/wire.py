"""Protocol of Volcano's extender plugin: `TaskInfo` under Go's field names.

Volcano 1.14, 1.15 (pkg/scheduler/plugins/extender): a call is about one node. `evictees` are all running, evictable
tasks there, null if there are none, including those that other plugins forbid. A response without `status`, or with
0, allows everything; a victim without its `Resreq` can crash the scheduler. So `status` is always written, and victims
are returned byte for byte.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

import msgspec

LONGEST_ANSWER_BYTES: Final = (10 << 20) - 4096
"""Volcano reads 10 MiB; a truncated response allows nothing."""

_PREFIX: Final = b'{"status":1,"victims":['
_SUFFIX: Final = b"]}"


class Resources(msgspec.Struct, frozen=True):
    """Thousandths of a CPU, bytes, and the rest by name, in thousandths."""

    cpu: float = msgspec.field(name="MilliCPU", default=0.0)
    memory: float = msgspec.field(name="Memory", default=0.0)
    scalars: dict[str, float] | None = msgspec.field(name="ScalarResources", default=None)

    def nonzero_amounts(self) -> Mapping[str, float]:
        """Amounts by name, without zeros."""
        every = {"cpu": self.cpu, "memory": self.memory, **(self.scalars or {})}
        return {name: amount for name, amount in every.items() if amount > 0}


class PodMetadata(msgspec.Struct, frozen=True, rename="camel"):
    annotations: dict[str, str] | None = None
    creation_timestamp: str | None = None


class Pod(msgspec.Struct, frozen=True):
    metadata: PodMetadata = PodMetadata()


class Task(msgspec.Struct, frozen=True):
    """A `TaskInfo`, reduced to the fields read here. `uid` is the pod's, `job` is `namespace/podgroup`."""

    uid: str = msgspec.field(name="UID")
    job: str = msgspec.field(name="Job", default="")
    node: str = msgspec.field(name="NodeName", default="")
    priority: int = msgspec.field(name="Priority", default=0)
    requests: Resources | None = msgspec.field(name="Resreq", default=None)
    needs: Resources | None = msgspec.field(name="InitResreq", default=None)
    """What must be free for it to start, including its init containers."""
    pod: Pod | None = msgspec.field(name="Pod", default=None)


class Evictee(msgspec.Struct, frozen=True):
    """One task that Volcano may evict, and its original bytes."""

    task: Task
    raw: msgspec.Raw


class Call(msgspec.Struct, frozen=True):
    evictor: Task
    evictees: tuple[Evictee, ...]


class _Call(msgspec.Struct, frozen=True):
    evictor: Task
    evictees: list[msgspec.Raw] | None = None


_calls = msgspec.json.Decoder(_Call)
_tasks = msgspec.json.Decoder(Task)


def read(body: bytes | bytearray) -> Call:
    """Decode a request body.

    Raises:
        msgspec.DecodeError: it is malformed.
    """
    call = _calls.decode(body)
    return Call(call.evictor, tuple(Evictee(_tasks.decode(raw), raw) for raw in call.evictees or ()))


def write(victims: Iterable[msgspec.Raw]) -> bytes:
    """Encode a response that allows these victims, as many as Volcano can read."""
    parts, size = [], len(_PREFIX) + len(_SUFFIX)
    for victim in victims:
        part = bytes(victim)
        size += len(part) + 1
        if size > LONGEST_ANSWER_BYTES:
            break
        parts.append(part)
    return _PREFIX + b",".join(parts) + _SUFFIX
