"""What a chaos run was made of: with nothing in it, nothing can break. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from cedana_sched.model.records import CheckpointStep, RestoreStep
from tests.cluster.fixtures.audit import Write
from tests.e2e.product.chaos.account import Account
from tests.e2e.product.chaos.holding import HELD
from tests.e2e.product.chaos.parts_ended import endings


def figures(account: Account) -> dict[str, int]:
    """Counts by what is counted: of our objects all that were made, but of failed ones what is left at the end."""
    moves = list(account.moves())
    begun = [now for _, now in account.beginnings() if not account.was_deleted(now)]
    made = [one.resource for one in account.writes if one.verb == "create" and one.code == 201]
    return {
        "faults": len(account.history),
        "words": len(account.words),
        "jobs": len({replica[:2] for replica in account.replicas}),
        "programs": len(account.lives),
        "evictions held": made.count("preemptionholds"),
        "checkpoints": made.count("checkpoints"),
        "checkpoints failed": sum(one["status"].get("step") == CheckpointStep.FAILED for one in account.checkpoints),
        "returns": made.count("restores"),
        "returns cut short": cut_short(account.writes),
        "continued in another pod": len(moves),
        "rewound to an older snapshot": sum(now.number <= before.number for before, now in moves),
        "begun anew beside a snapshot": sum(account.had_snapshot(one) for one in begun),
        "begun anew, never saved": sum(not account.had_snapshot(one) for one in begun),
        "requests refused": sum(HELD in one.message and one.code == 429 for one in account.writes),
        "jobs deleted, most of them in a hold": len(account.deleted),
        "parts ended": len(list(endings(account.writes))),
    }


def cut_short(writes: Sequence[Write]) -> int:
    """Returns that ended before anything ran: preempted, deleted, or their node gone, on the way back."""
    steps: defaultdict[tuple[str, str], set[str]] = defaultdict(set)
    for write in writes:
        if write.resource in {"restores", "restores/status"} and write.code in {200, 201} and write.body:
            steps[write.namespace, write.name].add(write.body.get("status", {}).get("step", ""))
    on_the_way = {RestoreStep.WAITING, RestoreStep.STAGING, RestoreStep.RESTORING}
    return sum(RestoreStep.ENDED in seen and not seen - on_the_way - {RestoreStep.ENDED, ""} for seen in steps.values())
