"""A pod's hold that was taken back although its scheduler asks on: it is held anew, and not for ever."""

from __future__ import annotations

import msgspec
import pytest

from cedana_sched.eviction_holds.decision import UNANNOUNCED_SECONDS
from cedana_sched.kube.builtin_kinds import Metadata
from cedana_sched.kube.own_kinds.cached_checkpoint import Checkpoint, CheckpointSpec
from cedana_sched.kube.own_kinds.cached_hold import HoldStatus, PreemptionHold, VictimStatus
from cedana_sched.kube.own_kinds.parts import IdentitySpec, PodRef
from cedana_sched.model.preemption import Verdict
from cedana_sched.model.records import HoldStep
from cedana_sched_webhooks.admission import Answer
from tests.unit.webhooks.holds.test_pod_hold import POD_UID, Desk, at, eviction, hold, mark, refused

UNANNOUNCED = int(UNANNOUNCED_SECONDS)


class Pod:
    """Its scheduler asks once a second; times count from the first attempt. The mark is as old as what it was made for.

    Args:
        deadline: of each of its holds, from its beginning.
    """

    def __init__(self, deadline: int) -> None:
        self.desk = Desk()
        self.at = 0
        self._deadline = deadline
        self._marked_at: int | None = None
        self._holds = 0
        self._held: PreemptionHold | None = None
        self.ended: list[PreemptionHold] = []

    def ask(self) -> Answer:
        annotations = {} if self._marked_at is None else mark(since=self._marked_at, last=self.at)
        answer = self.desk.ask(eviction(annotations=annotations))
        self._marked_at = self.at if self._marked_at is None else self._marked_at
        return answer

    def wait(self, seconds: int = 1) -> None:
        self.at += seconds
        self.desk.wait(seconds)

    def take_up(self) -> None:
        """The coordinator holds it."""
        self._holds += 1
        uid = f"signal-{self._holds}"
        self._held = hold(uid=uid, left=self.at + self._deadline, created=self.at)
        spec = CheckpointSpec(IdentitySpec("md"), PodRef(POD_UID, node_name="node1"), uid)
        self.desk.known.on_checkpoint_change(None, Checkpoint(Metadata(name=uid, namespace="lab"), spec))
        self.desk.known.on_hold_change(None, self._held)

    def take_back(
        self, step: HoldStep = HoldStep.RELEASED, *, remove_mark: bool = False, others: tuple[VictimStatus, ...] = ()
    ) -> None:
        """The coordinator holds it no more, and spares it."""
        assert self._held is not None
        released = at(self.at) if step is HoldStep.RELEASED else None
        victims = (VictimStatus(POD_UID, Verdict.NOT_NEEDED), *others)
        status = HoldStatus(step, self._held.status.deadline, released, victims)
        over = msgspec.structs.replace(self._held, status=status)
        self.desk.known.on_hold_change(self._held, over)
        self.ended.append(over)
        self._held = None
        if remove_mark:
            self._marked_at = None

    def forget(self) -> None:
        """Holds that are over are deleted after a while."""
        for over in self.ended:
            self.desk.known.on_hold_change(over, None)
        self.ended.clear()

    def ask_for(self, seconds: int) -> None:
        """Refused each time."""
        for _ in range(seconds):
            refused(self.ask())
            self.wait()

    def asked_until_it_goes(self, most: int = 100_000) -> int:
        """After how many seconds, while nobody holds it."""
        for seconds in range(most):
            if self.ask().refusal is None:
                return seconds
            self.wait()
        raise AssertionError(f"held for more than {most} s")


@pytest.mark.parametrize("step", [HoldStep.RELEASING, HoldStep.RELEASED])
@pytest.mark.parametrize("remove_mark", [False, True])
def test_who_is_asked_for_all_the_while_waits_anew_for_a_hold(step: HoldStep, remove_mark: bool) -> None:
    """Neither the mark nor what a replica remembers counts the time for which it was held."""
    pod = Pod(deadline=600)
    pod.ask_for(1)
    pod.take_up()
    pod.ask_for(100)
    pod.take_back(step, remove_mark=remove_mark)
    assert refused(pod.ask()).endswith("not taken the eviction up yet, at most 30 s more")
    assert pod.desk.marked, "the coordinator is told again"
    pod.ask_for(5)
    pod.take_up()
    assert pod.ask().decision == "held"


def test_after_a_hold_that_was_taken_back_nobody_waits_longer_than_before_one() -> None:
    pod = Pod(deadline=600)
    pod.ask_for(1)
    pod.take_up()
    pod.ask_for(100)
    pod.take_back()
    assert pod.asked_until_it_goes() == UNANNOUNCED
    assert Pod(deadline=600).asked_until_it_goes() == UNANNOUNCED, "nobody ever holds it"


def test_a_release_that_does_not_end_keeps_nobody_for_longer_than_its_hold_would_have() -> None:
    pod = Pod(deadline=60)
    pod.take_up()
    pod.ask_for(20)
    pod.take_back(HoldStep.RELEASING)
    assert 20 + pod.asked_until_it_goes() <= 60 + UNANNOUNCED


def test_a_hold_of_an_earlier_wish_gives_nobody_longer() -> None:
    pod = Pod(deadline=600)
    pod.ask_for(1)
    pod.take_up()
    pod.ask_for(10)
    pod.take_back(remove_mark=True)
    pod.wait(120)
    assert pod.asked_until_it_goes() == UNANNOUNCED


def test_of_a_gang_that_was_saved_the_one_who_was_spared_waits_anew() -> None:
    pod = Pod(deadline=600)
    pod.ask_for(1)
    pod.take_up()
    pod.ask_for(40)
    pod.take_back(others=(VictimStatus("pod-of-the-gang", Verdict.COMMITTED),))
    refused(pod.ask())


@pytest.mark.parametrize("deadline", [20, 950])
@pytest.mark.parametrize("part", [0.0, 0.5, 0.99])
@pytest.mark.parametrize("late", [1, UNANNOUNCED - 1])
@pytest.mark.parametrize("forgotten", [False, True])
def test_whoever_has_his_holds_taken_back_again_and_again_goes_all_the_same(
    deadline: int, part: float, late: int, forgotten: bool
) -> None:
    """A tenant can remove the mark of his pod: each time the preemption is taken back, and another one begins.

    However long each hold stands, and however late the next one comes: two deadlines, and what nobody may hold.
    """
    pod, stands = Pod(deadline), max(1, int(part * deadline))
    while pod.at <= 10 * (deadline + UNANNOUNCED):
        for _ in range(late):
            if pod.ask().refusal is None:
                assert pod.at <= 2 * deadline + UNANNOUNCED + 1
                return
            pod.wait()
        if forgotten:
            pod.forget()
        pod.take_up()
        pod.ask_for(stands)
        pod.take_back(remove_mark=True)
    raise AssertionError(f"held for {pod.at} s")
