"""What is kept of a run: the plan, what befell, the figures, every breach; beside them our objects."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

from tests.e2e.product.chaos.account import Account
from tests.e2e.product.chaos.conftest import Run
from tests.e2e.product.chaos.plan import Fault


def report(
    run: Run, plan: Sequence[Fault], account: Account, found: Mapping[str, int], breaches: Sequence[str]
) -> None:
    """Write `seed-N.json`, and what it was judged from into the folder `seed-N`, where the words are."""
    said = {
        "seed": run.seed,
        "minutes": run.minutes,
        "plan": [f"{one.at:.0f} s: {one}" for one in plan],
        "befallen": [
            f"{one.kind} {one.target}".strip() + f" {one.healed - one.began:.1f} s" for one in account.history
        ],
        "figures": found,
        "breaches": breaches,
    }
    run.verdict.write_text(json.dumps(said, indent=1) + "\n")
    for name in ("checkpoints", "restores", "holds", "events"):
        (run.evidence / f"{name}.json").write_text(json.dumps(getattr(account, name), indent=1, default=str) + "\n")
