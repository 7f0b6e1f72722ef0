"""The judge of a chaos run finds each kind of breach, and nothing else."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest

from cedana_sched.model.objects.names import EVICTION_REQUESTED
from tests.cluster.api.client import Object
from tests.cluster.fixtures.audit import Write
from tests.e2e.product.chaos.account import Account
from tests.e2e.product.chaos.figures import cut_short
from tests.e2e.product.chaos.holding import HELD
from tests.e2e.product.chaos.judge import judge
from tests.e2e.product.chaos.program import Word
from tests.e2e.product.chaos.world import Befallen
from tests.e2e.product.rendering import NAMESPACE

NS = "chaos"
_NODES = {"10.0.0.5": "first", "10.0.1.5": "last"}


def word(number: int, pod: str = "p1", name: str = "a", *, at: float | None = None, **changes: Any) -> Word:
    here = (NS, "0")
    first = Word(1000.0 + number if at is None else at, "10.0.0.5", "sim", name, here, here, pod, number, True)
    return replace(first, **changes)


def said(*numbers: int, pod: str = "p1", name: str = "a", at: float = 1000.0) -> list[Word]:
    return [word(number, pod, name, at=at + place) for place, number in enumerate(numbers)]


def account(*words: Iterable[Word], **rest: Any) -> Account:
    return Account([one for some in words for one in some], lambda address: _NODES.get(address, ""), **rest)


def checkpoint(pod: str, step: str = "Ready", *, at: float = 1001.0, message: str = "") -> Object:
    return {
        "metadata": {"namespace": NS, "name": f"checkpoint-of-{pod}"},
        "spec": {"podRef": {"uid": pod, "name": f"pod-{pod}"}, "holdUID": "one"},
        "status": {"step": step, "commitTime": _stamp(at), "completionTime": _stamp(at), "message": message},
    }


def restore(pod: str, step: str = "Ended", *, cold: bool = False, message: str = "", at: float = 1010.0) -> Object:
    return {
        "metadata": {"namespace": NS, "name": f"restore-of-{pod}"},
        "spec": {"podRef": {"uid": pod}, "creationTime": _stamp(at)},
        "status": {"step": step, "cold": cold, "message": message},
    }


def hold(step: str = "Released", *, name: str | None = "sim", deadline: float = 1060.0) -> Object:
    return {
        "metadata": {"namespace": NS, "name": "hold"},
        "spec": {"uid": "one", "creationTime": _stamp(1000.0), **({"heldObjectRef": {"name": name}} if name else {})},
        "status": {"step": step, "deadline": _stamp(deadline)},
    }


def refusals(*moments: float, name: str = "sim", namespace: str = NS) -> list[Write]:
    resource = "pods/status" if name.startswith("pod-") else "jobs"
    return [write("patch", resource, name, code=429, at=at, namespace=namespace) for at in moments]


def marks(code: int) -> list[Write]:
    body = {"metadata": {"annotations": {EVICTION_REQUESTED: "{}"}}}
    return [write("patch", "pods", "pod-p1", body, code=code, at=1001.0)]


def write(
    verb: str, resource: str, name: str, body: Object | None = None, *, code: int = 201, at: float = 1000.0,
    namespace: str = NS,
) -> Write:  # fmt: skip
    moment = datetime.fromtimestamp(at, UTC)
    message = f"{HELD}: it is saved" if code == 429 else ""
    return Write("somebody", verb, resource, namespace, name, code, message, body or {}, moment, moment)


def renewals(*moments: float) -> list[Write]:
    return [
        write("update", "leases", "cedana-sched-coordinator", code=200, at=at, namespace=NAMESPACE) for at in moments
    ]


def created(**objects: Object) -> list[Write]:
    return [write("create", resource, body["metadata"]["name"], body) for resource, body in objects.items()]


def warning(pod: str, reason: str = "MissedByWebhook") -> Object:
    return {"type": "Warning", "reason": reason, "involvedObject": {"kind": "Pod", "uid": pod}}


def killing(pod: str, at: float) -> Object:
    involved = {"kind": "Pod", "uid": pod}
    return {"type": "Normal", "reason": "Killing", "involvedObject": involved, "firstTimestamp": _stamp(at)}


def failed_start(pod: str, at: float) -> Object:
    involved = {"kind": "Pod", "uid": pod}
    stamps = {"firstTimestamp": _stamp(at), "lastTimestamp": _stamp(at)}
    return {"type": "Warning", "reason": "Failed", "message": "Error: EOF", "involvedObject": involved, **stamps}


def bound(pod: str, name: str, at: float) -> Write:
    return write("create", "pods/binding", name, {"metadata": {"uid": pod}}, at=at)


def deleted(name: str, at: float, code: int = 200) -> Write:
    return write("delete", "pods", name, code=code, at=at)


def ended(code: int, message: str = "Traceback", reason: str = "Error", started: float = 1000.0) -> list[Write]:
    terminated = {
        "containerID": f"containerd://{code}", "exitCode": code, "message": message, "reason": reason,
        "startedAt": _stamp(started),
    }  # fmt: skip
    body = {"status": {"containerStatuses": [{"state": {"terminated": terminated}}]}}
    return [write("patch", "pods/status", "coordinator-1", body, code=200, namespace=NAMESPACE)] * 2


def _stamp(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).isoformat()


def breaches(found: Account) -> set[str]:
    return {line.split(":")[0] for line in judge(found)}


UNANNOUNCED = refusals(1000.0, 1010.0, 1020.0, 1030.0, 1040.0, 1050.0, 1060.0, name="pod-p1")
ON_AND_ON = refusals(1063.0, name="pod-p1")
IN_PLACE_OF_ANOTHER = created(preemptionholds=hold(name=None), checkpoints=checkpoint("p9"))

MOVED = [*said(0, 1, 2), *said(3, 4, pod="p2", at=1010.0)]
REWOUND = [*said(0, 1, 2, 3), *said(2, 3, 4, pod="p2", at=1010.0)]
BEGUN_ANEW = [*said(0, 1, 2), *said(0, 1, pod="p2", name="b", at=1010.0)]
APART = (Befallen("clock-apart", "+40s", 1004.0, 1010.0),)
AGAIN = [*said(0, 1, 2), *said(0, 1, name="b", at=1010.0)]
LOST = (Befallen("node-killed", "first", 1002.5, 1008.0),)


OVERLAP = [
    *said(0, 1, 2),
    *said(0, pod="p2", name="b", at=1003.0),
    *said(3, at=1004.0),
    *said(1, pod="p2", name="b", at=1005.0),
]
BESIDE = [
    *said(0, 1, 2),
    *said(0, name="b", at=1003.0),
    *said(3, at=1004.0),
    *said(1, name="b", at=1005.0),
]
MOVED_BESIDE = [
    *said(2, 3, at=1002.0),
    *said(0, name="b", at=1004.0),
    *said(4, at=1005.0),
]
"""A program that came from a snapshot, and one that began beside it."""
CONTAINERD = (Befallen("containerd-restarted", "first", 999.0, 1001.0),)
BACK = [*said(0, 1, 2), *said(0, 1, name="b", at=1010.0), *said(3, 4, pod="p2", at=1020.0)]


GO_ON = {f"{NS}/sim": 1}
KUEUES = created(preemptionholds=hold())
VOLCANOS = created(checkpoints=checkpoint("p1"), preemptionholds=hold(name=None))
LEASE = "the lease x could not be renewed for 10 s"


@pytest.mark.parametrize(
    "good",
    [
        account(MOVED, expected=GO_ON),
        account(said(0, 1, 5, 6)),
        account(REWOUND, history=LOST),
        account(REWOUND, checkpoints=[checkpoint("p1", "Failed", message="the store is full")]),
        account(REWOUND, events=[warning("p1")]),
        account(REWOUND, deleted=frozenset({f"{NS}/sim"})),
        account(BEGUN_ANEW, history=LOST),
        account(BEGUN_ANEW, checkpoints=[checkpoint("p1", "Failed", message="the store is full")]),
        account(BEGUN_ANEW, events=[warning("p1")]),
        account(BEGUN_ANEW, checkpoints=[checkpoint("p1")], restores=[restore("p2", cold=True, message="damaged")]),
        account(BEGUN_ANEW, checkpoints=[checkpoint("p1")], events=[warning("p2", "ColdStart")]),
        account(
            BEGUN_ANEW,
            checkpoints=[checkpoint("p1")],
            restores=[restore("p2", cold=True, message="damaged", at=1020.0), restore("p2", at=1010.0)],
        ),
        account(MOVED, writes=[*KUEUES, *refusals(1000.0, 1059.0)], expected=GO_ON),
        account(MOVED, writes=[*VOLCANOS, *refusals(1000.0, 1059.0, name="pod-p1")], expected=GO_ON),
        account(MOVED, writes=[*KUEUES, *refusals(1059.0, 1100.0, 1120.0)], expected=GO_ON),
        account(MOVED, writes=refusals(1000.0, 1025.0, 1100.0), expected=GO_ON),
        account(MOVED, writes=[*marks(500), *UNANNOUNCED], expected=GO_ON),
        account(MOVED, writes=[*IN_PLACE_OF_ANOTHER, *UNANNOUNCED], expected=GO_ON),
        account(MOVED, writes=refusals(1000.0, 1010.0, 1020.0, 1042.0, 1052.0, name="pod-p1"), expected=GO_ON),
        account(MOVED, checkpoints=[checkpoint("p1")], restores=[restore("p2")], holds=[hold()]),
        account(OVERLAP, events=[killing("p1", 1002.5), warning("p1")]),
        account(BACK, checkpoints=[checkpoint("p1")], events=[warning("p1", "ColdStart")]),
        account(MOVED, writes=[*ended(0), *ended(137), *ended(255), *ended(1, LEASE)]),
        account(MOVED, writes=ended(128, "failed to start shim: signal: killed", "StartError")),
        account(OVERLAP, events=[killing("p1", 1002.5), killing("p1", 1012.0), warning("p1")]),
        account(MOVED, writes=ended(139, started=1005.0), history=APART),
        account(AGAIN, checkpoints=[checkpoint("p1")], events=[warning("p1", "SnapshotDiverged")]),
        account(BEGUN_ANEW, checkpoints=[checkpoint("p1")], writes=renewals(1008.0, 1013.0)),
        account(BEGUN_ANEW, writes=renewals(998.0, 1003.0, 1005.0)),
        account(BESIDE, events=[failed_start("p1", 1000.0)], history=CONTAINERD),
        account(BEGUN_ANEW, writes=[bound("p1", "sim-0", 990.0), deleted("sim-0", 999.0)]),
    ],
    ids=[
        "continued", "lost datagrams", "rewound with its node", "rewound after a failed checkpoint",
        "rewound, and said so", "deleted", "never saved, its node lost", "never saved, its checkpoint failed",
        "never saved, and said so", "begun anew and said so", "begun anew and an Event says so",
        "the newest Restore counts", "held to its deadline", "a pod held to its deadline", "held anew",
        "held before there was a hold", "held without a mark", "another victim while one is saved",
        "a pod held before there was a hold, twice", "all over",
        "runs beside its successor while it ends",
        "back from before a cold start that was said", "components killed", "a component not made",
        "ended anew by a kubelet that was started anew", "crashed by libfaketime",
        "started again in place, and said so", "came and went while nobody led",
        "never saved, and gone before anybody led", "runs on forgotten by containerd", "deleted before it began",
    ],
)  # fmt: skip
def test_nothing_is_found_where_nothing_is_wrong(good: Account) -> None:
    assert judge(good) == []


@pytest.mark.parametrize(
    ("rule", "bad"),
    [
        ("one_copy_at_a_time", account(said(0, 1, 2), said(3, pod="p2"), said(4, pod="p1"))),
        ("one_copy_at_a_time", account(said(0, 1), said(0, pod="p2", name="b"), said(2))),
        ("one_copy_at_a_time", account(OVERLAP, events=[warning("p1")])),
        ("one_copy_at_a_time", account(BACK, said(2, name="b", at=1030.0), events=[warning("p1", "ColdStart")])),
        ("one_copy_at_a_time", account(BESIDE, events=[failed_start("p1", 1000.0)])),
        ("one_copy_at_a_time", account(BESIDE, history=CONTAINERD)),
        ("one_copy_at_a_time", account(BESIDE, events=[failed_start("p1", 1020.0)], history=CONTAINERD)),
        (
            "one_copy_at_a_time",
            account(said(0, 1, pod="p0"), MOVED_BESIDE, events=[failed_start("p1", 1002.0)], history=CONTAINERD),
        ),
        ("no_silent_cold_start", account(BACK, checkpoints=[checkpoint("p1")])),
        ("no_silent_cold_start", account(BEGUN_ANEW, checkpoints=[checkpoint("p1")])),
        ("no_silent_cold_start", account(BEGUN_ANEW, checkpoints=[checkpoint("p1")], writes=renewals(1010.5))),
        ("no_silent_cold_start", account(BEGUN_ANEW, checkpoints=[checkpoint("p1")], writes=renewals(1009.5, 1011.5))),
        (
            "no_silent_cold_start",
            account(BEGUN_ANEW, checkpoints=[checkpoint("p1")], restores=[restore("p2", cold=True)]),
        ),
        (
            "no_silent_cold_start",
            account(BEGUN_ANEW, checkpoints=[checkpoint("p1")], restores=[
                restore("p2", cold=True, message="damaged", at=1005.0), restore("p2", at=1010.0),
            ]),
        ),
        ("no_silent_cold_start", account(BEGUN_ANEW, checkpoints=[checkpoint("p1")], history=LOST)),
        ("no_damaged_memory", account([word(3, is_intact=False)])),
        ("holds_end_by_their_deadline", account(MOVED, writes=[*KUEUES, *refusals(1059.0, 1070.0, 1090.0, 1110.0)])),
        (
            "holds_end_by_their_deadline",
            account(MOVED, writes=[*VOLCANOS, *refusals(1070.0, 1080.0, 1090.0, 1100.0, 1110.0, name="pod-p1")]),
        ),
        ("holds_end_by_their_deadline", account(MOVED, writes=refusals(1000.0, 1025.0, 1033.0))),
        ("holds_end_by_their_deadline", account(MOVED, writes=[*marks(200), *UNANNOUNCED])),
        ("holds_end_by_their_deadline", account(MOVED, writes=[*marks(500), *UNANNOUNCED, *ON_AND_ON])),
        ("holds_end_by_their_deadline", account(MOVED, writes=[*IN_PLACE_OF_ANOTHER, *UNANNOUNCED, *ON_AND_ON])),
        ("holds_end_by_their_deadline", account(MOVED, writes=[*KUEUES, *UNANNOUNCED])),
        ("nothing_twice", account(REWOUND)),
        ("nothing_twice", account(REWOUND, checkpoints=[checkpoint("p1", "Failed", at=900.0, message="long ago")])),
        ("nothing_twice", account(said(0, 1, 2, 1, 2))),
        ("nothing_twice", account(said(0, 1, 1))),
        ("nothing_twice", account(REWOUND, history=(Befallen("node-killed", "last", 1002.5, 1008.0),))),
        ("nothing_twice", account(REWOUND, history=(Befallen("node-killed", "first", 900.0, 905.0),))),
        ("no_work_is_lost_without_a_word", account(BEGUN_ANEW)),
        (
            "no_work_is_lost_without_a_word",
            account(BEGUN_ANEW, writes=[bound("p1", "sim-0", 990.0), deleted("sim-0", 1001.0)]),
        ),
        (
            "no_work_is_lost_without_a_word",
            account(BEGUN_ANEW, writes=[bound("p1", "sim-0", 990.0), deleted("sim-0", 999.0, 429)]),
        ),
        (
            "no_work_is_lost_without_a_word",
            account(BEGUN_ANEW, writes=[deleted("sim-0", 980.0), bound("p1", "sim-0", 990.0)]),
        ),
        ("no_work_is_lost_without_a_word", account(BEGUN_ANEW, writes=renewals(999.0, 1001.0, 1003.0))),
        ("no_work_is_lost_without_a_word", account(BEGUN_ANEW, checkpoints=[checkpoint("p0", at=1015.0)])),
        ("no_work_is_lost_without_a_word", account(BEGUN_ANEW, checkpoints=[checkpoint("p1", "Failed")])),
        ("no_work_is_lost_without_a_word", account(BEGUN_ANEW, events=[warning("p1", "EvictionReleased")])),
        (
            "no_work_is_lost_without_a_word",  # its first words were lost, as while its node is cut from the network
            account(
                [*said(100, 101, 102), *said(0, 1, pod="p2", name="b", at=1010.0)],
                writes=[bound("p1", "sim-0", 980.0), deleted("sim-0", 999.0)],
            ),
        ),
        (
            "no_silent_cold_start",  # p2 was deleted while it came back, and began all the same
            account(
                BEGUN_ANEW,
                checkpoints=[checkpoint("p1")],
                writes=[bound("p2", "sim-0", 1005.0), deleted("sim-0", 1009.0)],
            ),
        ),
        ("nothing_crosses_namespaces", account([word(3, found=("other", "0"))])),
        ("replicas_stay_themselves", account([word(3, found=(NS, "1"))])),
        ("every_phase_ends", account(MOVED, checkpoints=[checkpoint("p1", "Dumping")])),
        ("every_phase_ends", account(MOVED, holds=[hold("Holding")])),
        ("every_phase_ends", account(MOVED, restores=[restore("p2", "Staging")])),
        ("every_phase_ends", account(MOVED, frozen=["17 python3 on first"])),
        ("every_phase_ends", account(MOVED, expected={f"{NS}/sim": 2})),
        ("only_workloads_are_held", account(MOVED, writes=refusals(1000.0, namespace="kube-system"), expected=GO_ON)),
        ("no_silent_cold_start", account(AGAIN, checkpoints=[checkpoint("p1")])),
        ("no_component_ends_by_itself", account(MOVED, writes=ended(1))),
        ("no_component_ends_by_itself", account(MOVED, writes=ended(137, "", "OOMKilled"))),
        ("no_component_ends_by_itself", account(MOVED, writes=ended(139, started=1020.0), history=APART)),
        ("no_component_ends_by_itself", account(MOVED, writes=ended(1, ""))),
    ],
)  # fmt: skip
def test_each_breach_is_found(rule: str, bad: Account) -> None:
    assert rule in breaches(bad)


def test_returns_that_are_cut_short_are_counted() -> None:
    steps = {"cut": ("Waiting", "Staging", "Ended"), "back": ("Staging", "Running", "Ended"), "cold": ("StartingCold",)}
    writes = [
        write("patch", "restores/status", name, {"status": {"step": step}}, code=200)
        for name, seen in steps.items()
        for step in seen
    ]
    assert cut_short(writes) == 1
