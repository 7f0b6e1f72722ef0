"""Whether Armada's jobs in this cluster are saved on preemption, as far as the cluster shows it.

Armada runs elsewhere, and only the coordinator calls it: Armada's refusals are found in Events.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import msgspec

from cedana_sched.kube.builtin_kinds import Metadata, PartialObject
from cedana_sched.kube.client import Api
from cedana_sched.kube.events import COMPONENT
from cedana_sched.kube.resources import EVENTS, PODS, UNFINISHED_PODS
from cedana_sched.model.diagnostic_findings import Finding, Level, replace_unprintable
from cedana_sched.model.objects import names
from cedana_sched_armada.executor_labels import JOB_LABEL

CHECK: Final = "armada"
DENIED, NOT_TRUSTED = "ArmadaDenied", "ArmadaCertificateInvalid"
"""Reasons of Events on pods whose preemptions are invisible because the event stream cannot be watched."""
_MOST_NAMES: Final = 5
_LONGEST_MESSAGE: Final = 300


class _Event(msgspec.Struct, frozen=True):
    metadata: Metadata = Metadata()
    message: str = ""


async def diagnose_cluster(api: Api) -> list[Finding]:
    """See `Diagnosing`."""
    query = {"labelSelector": JOB_LABEL, "fieldSelector": UNFINISHED_PODS}
    jobs, _ = await api.list_all(PODS, None, query, into=PartialObject)
    if not jobs:
        return [Finding(CHECK, Level.OK, "none of its jobs is in this cluster")]
    protected = [pod for pod in jobs if pod.metadata.labels.get(names.PROTECTED) == "true"]
    found = [*_find_pods_without_hook(protected), *await _find_watch_failures(api)]
    return found or [Finding(CHECK, Level.OK, f"{len(protected)} of its {len(jobs)} pods here are protected")]


def _find_pods_without_hook(protected: list[PartialObject]) -> Iterator[Finding]:
    """Yield pods without our preStop hook, which alone holds a preempted pod: Armada makes no call to refuse."""
    bare = [pod.metadata.namespace for pod in protected if names.PRESTOP_TOKEN not in pod.metadata.annotations]
    if bare:
        where = sorted(set(bare))
        more = f" and {len(where) - _MOST_NAMES} more" if len(where) > _MOST_NAMES else ""
        yield Finding(
            CHECK,
            Level.WARN,
            f"{len(bare)} protected pods of its jobs have no preStop hook of ours, and lose their work when it "
            f"preempts them: in {', '.join(where[:_MOST_NAMES])}{more}",
            "let their namespaces not enforce Pod Security 'baseline' or 'restricted', and submit the jobs again",
        )


async def _find_watch_failures(api: Api) -> list[Finding]:
    found = []
    for reason in (DENIED, NOT_TRUSTED):
        ours = f"reason={reason},reportingComponent={COMPONENT}"
        events, _ = await api.list_all(EVENTS, None, {"fieldSelector": ours}, into=_Event)
        if events:
            last = events[-1]
            message = (
                f"within the last hour its events could not be followed ({reason}; Events: {len(events)}): one in "
                f"namespace {last.metadata.namespace} says: {replace_unprintable(last.message[:_LONGEST_MESSAGE])!r}"
            )
            remedy = (
                "mend what the coordinator's log says as well, "
                "because any user who may write Events there can write the like; "
                f"kubectl get events --all-namespaces --field-selector {ours}"
            )
            found.append(Finding(CHECK, Level.WARN, message, remedy))
    return found
