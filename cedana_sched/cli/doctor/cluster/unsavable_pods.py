"""Check for protected pods of which a checkpoint would fail, as the agents' conditions on them say."""

from __future__ import annotations

from collections import defaultdict
from typing import Final

import msgspec

from cedana_sched.cli.cluster_reader import ClusterReader, summarize_names
from cedana_sched.cli.doctor.check_runner import Finding, Level
from cedana_sched.kube.builtin_kinds import Condition
from cedana_sched.kube.resources import PODS, UNFINISHED_PODS
from cedana_sched.model.objects.names import CHECKPOINTABLE, PROTECTED
from cedana_sched.model.texts import printable_text

CHECK: Final = "protected pods"


class _Metadata(msgspec.Struct, frozen=True):
    namespace: str = ""
    name: str = ""


class _Status(msgspec.Struct, frozen=True):
    conditions: tuple[Condition, ...] = ()


class _Pod(msgspec.Struct, frozen=True):
    """A pod, decoded only as far as its conditions, because there may be many thousands."""

    metadata: _Metadata
    status: _Status = _Status()


async def examine(reads: ClusterReader) -> list[Finding]:
    """Return a finding for each reason why pods cannot be saved, with their names and one of the messages."""
    pods = await reads.read_objects(PODS, labels=f"{PROTECTED}=true", fields=UNFINISHED_PODS, into=_Pod)
    names: defaultdict[str, list[str]] = defaultdict(list)
    messages: dict[str, str] = {}
    for pod in pods:
        for condition in pod.status.conditions:
            if condition.type == CHECKPOINTABLE and condition.status == "False":
                reason = printable_text(condition.reason)
                names[reason].append(f"{pod.metadata.namespace}/{pod.metadata.name}")
                messages.setdefault(reason, printable_text(condition.message))
    if not names:
        return [Finding(CHECK, Level.OK, f"nothing is known for which a checkpoint of one of {len(pods)} would fail")]
    return [
        Finding(
            CHECK,
            Level.WARN,
            f"a checkpoint of {len(found)} would fail ({reason}): {summarize_names(found)}",
            f"of the first: {messages[reason]}",
        )
        for reason, found in sorted(names.items())
    ]
