"""Handles one call of the scheduler, from bytes to bytes. Reads only caches, and never waits."""

from __future__ import annotations

from typing import NamedTuple

from cedana_sched_volcano.extender import wire
from cedana_sched_volcano.extender.claims import Claims, Place, Preemptor, Word
from cedana_sched_volcano.extender.pod_states_interface import EvictionRequester, ProtectedPodStates, Way
from cedana_sched_volcano.extender.selection import build_candidate


class Answer(NamedTuple):
    """The response body, and a summary of it."""

    body: bytes
    word: Word
    preemptor: str
    """`namespace/podgroup` of the preemptor."""
    node: str
    evictees: int
    victims: int
    requested: tuple[str, ...]


def answer_extender_call(way: Way, body: bytes | bytearray, pod_states: ProtectedPodStates, claims: Claims) -> Answer:
    """Decide which pods may be evicted, and mark wanted pods that may not be evicted yet through `pod_states`.

    Raises:
        msgspec.DecodeError: `body` is no such request.
    """
    call = wire.read(body)
    evictor = call.evictor
    if not call.evictees:
        return Answer(wire.write(()), "nothing-of-ours", evictor.job, "", 0, 0, ())
    candidates = [build_candidate(one.task, pod_states.state_of(one.task.uid)) for one in call.evictees]
    node = call.evictees[0].task.node
    needs = evictor.needs or evictor.requests or wire.Resources()
    decision = claims.decide_evictions(
        Preemptor(evictor.uid, evictor.job, needs.nonzero_amounts()),
        Place(way, node, all(one.job == evictor.job for one in candidates)),
        candidates,
        pod_states.free_resources(node, evictor.uid),
    )
    wanted = EvictionRequester(way, evictor.job, evictor.uid)
    for uid in decision.requested:
        pod_states.record_eviction_request(uid, wanted)
    allowed = [one.raw for one in call.evictees if one.task.uid in decision.allowed]
    written = wire.write(allowed)
    return Answer(written, decision.word, evictor.job, node, len(candidates), len(allowed), decision.requested)
