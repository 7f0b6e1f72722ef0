"""One call as Volcano makes it: bytes in, bytes out."""

from __future__ import annotations

import json

import msgspec
import pytest

from cedana_sched_volcano.extender import wire
from cedana_sched_volcano.extender.answering import answer_extender_call
from cedana_sched_volcano.extender.claims import Claims
from cedana_sched_volcano.extender.pod_states_interface import EvictionRequester, ProtectedPodState
from tests.unit.adapters.volcano.extender.extender_builders import KnownPods, question, task

EVICTOR = task("ml-0", "ml", priority=10)


def claims(*, steering: bool = False) -> Claims:
    return Claims(lambda: 0.0, steering=steering)


def test_victims_are_the_very_bytes_that_came() -> None:
    spaced = b'{"UID":"a", "Job":"lab/x","NodeName":"n","Resreq":{"MilliCPU":1e3,"New":{}}, "Later":[1, 2.50 ,null]}'
    body = b'{"evictor":{"UID":"e","Job":"lab/e","InitResreq":{"MilliCPU":1000}},"evictees":[ ' + spaced + b" ]}"
    assert (
        answer_extender_call("reclaim", body, KnownPods(), claims()).body == b'{"status":1,"victims":[' + spaced + b"]}"
    )


@pytest.mark.parametrize("evictees", [None, []])
def test_without_evictees_the_answer_still_has_its_status(evictees: None) -> None:
    answered = answer_extender_call("preempt", question(EVICTOR, evictees), KnownPods(), claims())
    assert json.loads(answered.body) == {"status": 1, "victims": []}


def test_a_protected_pod_is_left_out_until_it_may_go_and_is_asked_for_until_then() -> None:
    holder, held = KnownPods(a=ProtectedPodState(may_go=False)), claims()
    body = question(EVICTOR, [task("a", "x", node="n")])
    answered = answer_extender_call("preempt", body, holder, held)
    assert json.loads(answered.body) == {"status": 1, "victims": []}
    assert (answered.word, answered.node, answered.preemptor) == ("held", "n", "lab/ml")
    assert holder.told == [("a", EvictionRequester("preempt", "lab/ml", "ml-0"))]
    holder.standings["a"] = ProtectedPodState(may_go=True)
    answered = answer_extender_call("preempt", body, holder, held)
    assert json.loads(answered.body)["victims"] == [task("a", "x", node="n")]
    assert answered.word == "offered"


def test_what_volcano_leaves_null_is_nothing() -> None:
    evictee = {"UID": "a", "Resreq": None, "InitResreq": None, "Pod": None, "NodeName": "n"}
    evictor = {"UID": "e", "Job": "", "Resreq": {"MilliCPU": 5, "ScalarResources": None}, "InitResreq": None}
    holder = KnownPods(a=ProtectedPodState(may_go=False))
    assert answer_extender_call("reclaim", question(evictor, [evictee]), holder, claims()).word == "not-enough"
    assert holder.told == []


@pytest.mark.parametrize(
    "body",
    [b"", b"null", b"[]", b"{}", b'{"evictor":{}}', b'{"evictor":{"UID":"a"},"evictees":{}}', b'{"evictor":{"UID":"a"'],
)
def test_what_is_no_question_is_refused(body: bytes) -> None:
    with pytest.raises(msgspec.DecodeError):
        answer_extender_call("reclaim", body, KnownPods(), claims())


def test_an_evictee_that_cannot_be_read_is_no_question() -> None:
    with pytest.raises(msgspec.DecodeError):
        answer_extender_call("reclaim", question(EVICTOR, [{"Name": "without uid"}]), KnownPods(), claims())


def test_no_answer_is_longer_than_volcano_reads() -> None:
    evictees = [task(f"pod-{number}", "x", node="n", filler=200_000) for number in range(80)]
    answered = answer_extender_call("reclaim", question(EVICTOR, evictees), KnownPods(), claims())
    assert len(answered.body) <= wire.LONGEST_ANSWER_BYTES < 10 << 20
    victims = json.loads(answered.body)["victims"]
    assert 40 < len(victims) < 80
    assert victims == evictees[: len(victims)]


@pytest.mark.parametrize("pods", [50, 500])
def test_each_pod_is_looked_up_once_however_many_there_are(pods: int) -> None:
    standings = {f"pod-{number}": ProtectedPodState(may_go=False) for number in range(pods)}
    holder, held = KnownPods(**standings), claims(steering=True)
    evictees = [task(uid, f"job-{uid}", node="n", queue="bio", filler=1000) for uid in standings]
    body = question(EVICTOR, evictees)
    for cycle in range(1, 4):
        assert json.loads(answer_extender_call("reclaim", body, holder, held).body)["victims"] == []
        assert len(holder.looked) == cycle * pods
        assert len(holder.told) == cycle  # one pod is enough, and it stays the same
    assert len(holder.wanted) == 1
