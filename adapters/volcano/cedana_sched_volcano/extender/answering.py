"""Handles one call of the scheduler, from bytes to bytes. Reads only caches, and never waits."""

from __future__ import annotations

from typing import NamedTuple

from cedana_sched_volcano.extender import wire
from cedana_sched_volcano.extender.claims import Claims, Place, Preemptor, Word
from cedana_sched_volcano.extender.holder import Holder, Wanted, Way
from cedana_sched_volcano.extender.selection import candidate


class Answer(NamedTuple):
    """The response body, and a summary of it."""

    body: bytes
    word: Word
    preemptor: str
    """`namespace/podgroup` of the preemptor."""
    node: str
    evictees: int
    victims: int
    asked: tuple[str, ...]


def answer(way: Way, body: bytes | bytearray, holder: Holder, claims: Claims) -> Answer:
    """Decide which pods may be evicted, and mark wanted pods that may not be evicted yet through `holder`.

    Raises:
        msgspec.DecodeError: `body` is no such request.
    """
    call = wire.read(body)
    evictor = call.evictor
    if not call.evictees:
        return Answer(wire.write(()), "nothing-of-ours", evictor.job, "", 0, 0, ())
    candidates = [candidate(one.task, holder.standing(one.task.uid)) for one in call.evictees]
    node = call.evictees[0].task.node
    needs = evictor.needs or evictor.requests or wire.Resources()
    decision = claims.decide(
        Preemptor(evictor.uid, evictor.job, needs.amounts()),
        Place(way, node, all(one.job == evictor.job for one in candidates)),
        candidates,
        holder.free(node, evictor.uid),
    )
    wanted = Wanted(way, evictor.job, evictor.uid)
    for uid in decision.asked:
        holder.asked(uid, wanted)
    allowed = [one.raw for one in call.evictees if one.task.uid in decision.allowed]
    written = wire.write(allowed)
    return Answer(written, decision.word, evictor.job, node, len(candidates), len(allowed), decision.asked)
