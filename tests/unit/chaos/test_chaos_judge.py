"""The judge of a chaos run finds each kind of breach, and nothing else."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest

from tests.cluster.api.client import Object
from tests.cluster.fixtures.audit import Write
from tests.e2e.product.chaos.judge import HELD, Account, judge
from tests.e2e.product.chaos.program import Word
from tests.e2e.product.chaos.world import Befallen

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


def checkpoint(pod: str, step: str = "Ready", *, committed: float = 1001.0, message: str = "") -> Object:
    return {
        "metadata": {"namespace": NS, "name": f"checkpoint-of-{pod}"},
        "spec": {"pod": {"uid": pod}, "identity": {"id": "sim", "index": 0}},
        "status": {"step": step, "committedAt": _stamp(committed), "message": message},
    }


def restore(pod: str, step: str = "Ended", *, cold: bool = False, message: str = "") -> Object:
    return {
        "metadata": {"namespace": NS, "name": f"restore-of-{pod}"},
        "spec": {"pod": {"uid": pod}},
        "status": {"step": step, "cold": cold, "message": message},
    }


def hold(step: str = "Released", *, deadline: float = 1060.0) -> Object:
    return {
        "metadata": {"namespace": NS, "name": "hold"},
        "spec": {"held": {"name": "sim"}},
        "status": {"step": step, "deadline": _stamp(deadline)},
    }


def refusal(at: float, namespace: str = NS) -> Write:
    moment = datetime.fromtimestamp(at, UTC)
    return Write("kueue", "patch", "jobs", namespace, "sim", 429, f"{HELD}: it is saved", {}, moment, moment)


def component(code: int) -> Object:
    terminated = {"exitCode": code, "message": "Traceback"}
    return {
        "metadata": {"name": "coordinator"},
        "status": {"containerStatuses": [{"lastState": {"terminated": terminated}}]},
    }


def _stamp(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).isoformat()


def breaches(found: Account) -> set[str]:
    return {line.split(":")[0] for line in judge(found)}


MOVED = [*said(0, 1, 2), *said(3, 4, pod="p2", at=1010.0)]
REWOUND = [*said(0, 1, 2, 3), *said(2, 3, 4, pod="p2", at=1010.0)]
BEGUN_ANEW = [*said(0, 1, 2), *said(0, 1, pod="p2", name="b", at=1010.0)]
LOST = (Befallen("node-killed", "first", 1002.5, 1008.0),)


@pytest.mark.parametrize(
    "good",
    [
        account(MOVED, expected={f"{NS}/sim": 1}),
        account(said(0, 1, 5, 6)),
        account(REWOUND, history=LOST),
        account(REWOUND, checkpoints=[checkpoint("p1", "Failed", message="the store is full")]),
        account(REWOUND, deleted=frozenset({f"{NS}/sim"})),
        account(BEGUN_ANEW),
        account(BEGUN_ANEW, checkpoints=[checkpoint("p0", committed=1015.0)]),
        account(BEGUN_ANEW, checkpoints=[checkpoint("p1")], restores=[restore("p2", cold=True, message="damaged")]),
        account(MOVED, holds=[hold()], writes=[refusal(1059.0)], expected={f"{NS}/sim": 1}),
        account(MOVED, checkpoints=[checkpoint("p1")], restores=[restore("p2")], holds=[hold()]),
        account(MOVED, components=[component(0), component(137)]),
    ],
    ids=[
        "continued", "lost datagrams", "rewound with its node", "rewound after a failed checkpoint", "deleted",
        "never saved", "saved only later", "begun anew and said so", "held to its deadline", "all over",
        "components killed",
    ],
)  # fmt: skip
def test_nothing_is_found_where_nothing_is_wrong(good: Account) -> None:
    assert judge(good) == []


@pytest.mark.parametrize(
    ("rule", "bad"),
    [
        ("one_copy_at_a_time", account(said(0, 1, 2), said(3, pod="p2"), said(4, pod="p1"))),
        ("one_copy_at_a_time", account(said(0, 1), said(0, pod="p2", name="b"), said(2))),
        ("no_silent_cold_start", account(BEGUN_ANEW, checkpoints=[checkpoint("p1")])),
        (
            "no_silent_cold_start",
            account(BEGUN_ANEW, checkpoints=[checkpoint("p1")], restores=[restore("p2", cold=True)]),
        ),
        ("no_damaged_memory", account([word(3, is_intact=False)])),
        (
            "holds_end_by_their_deadline",
            account(MOVED, holds=[hold()], writes=[refusal(1070.0)], expected={f"{NS}/sim": 1}),
        ),
        ("nothing_twice", account(REWOUND)),
        ("nothing_twice", account(said(0, 1, 2, 1, 2))),
        ("nothing_twice", account(said(0, 1, 1))),
        ("nothing_twice", account(REWOUND, history=(Befallen("node-killed", "last", 1002.5, 1008.0),))),
        ("nothing_twice", account(REWOUND, history=(Befallen("node-killed", "first", 900.0, 905.0),))),
        ("nothing_crosses_namespaces", account([word(3, found=("other", "0"))])),
        ("replicas_stay_themselves", account([word(3, found=(NS, "1"))])),
        ("every_phase_ends", account(MOVED, checkpoints=[checkpoint("p1", "Dumping")])),
        ("every_phase_ends", account(MOVED, holds=[hold("Holding")])),
        ("every_phase_ends", account(MOVED, restores=[restore("p2", "Staging")])),
        ("every_phase_ends", account(MOVED, frozen=["17 python3 on first"])),
        ("every_phase_ends", account(MOVED, expected={f"{NS}/sim": 2})),
        ("only_workloads_are_held", account(MOVED, writes=[refusal(1000.0, "kube-system")], expected={f"{NS}/sim": 1})),
        ("no_component_ends_by_itself", account(MOVED, components=[component(1)])),
    ],
)
def test_each_breach_is_found(rule: str, bad: Account) -> None:
    assert rule in breaches(bad)
