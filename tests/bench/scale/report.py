"""What one run of the bench has found, as the page tells it."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from tests.bench.report import machine
from tests.bench.scale import watchers
from tests.bench.scale.figures import Figures, percentile, spread, table
from tests.bench.scale.usage import Usage
from tests.bench.scale.watchers import WatchCost
from tests.bench.scale.webhook_load import AIM_SECONDS, CALLS_A_SECOND, Answers


class Load(msgspec.Struct, frozen=True):
    """One load on the webhooks, and what all replicas used meanwhile."""

    answers: Answers
    used: Usage
    pods: int = 0
    """Before the preemption of how many pods."""

    def in_words(self) -> str:
        """One line, as the run goes on."""
        return (
            f"webhooks: p50 {self.share(0.5):.1f} ms, p99 {self.share(0.99):.1f} ms, {self.cpu:.2f} ms of CPU a call,"
            f" {self.answers.share_within_aim:.2%} within the aim by their own count"
        )

    def share(self, share: float) -> float:
        """Milliseconds that this share of the answers did not exceed."""
        return 1e3 * percentile(self.answers.times, share)

    @property
    def cpu(self) -> float:
        """Milliseconds of processor time for one call."""
        return 1e3 * self.used.cpu_seconds / len(self.answers.times)


class Found(msgspec.Struct):
    """All that was measured."""

    watches: list[WatchCost] = []
    sizes: dict[int, list[Figures]] = {}
    """By the number of pods."""
    webhooks: list[Load] = []


def report(found: Found) -> str:
    """The measured part of the page."""
    parts = [
        f"{machine()}. In brackets: the least and the most of the repetitions.",
        *([table([found.sizes[pods] for pods in sorted(found.sizes)])] if found.sizes else []),
        *([_webhooks(found.webhooks)] if found.webhooks else []),
        *([watchers.table(found.watches)] if found.watches else []),
    ]
    return "\n\n".join(parts) + "\n"


def _webhooks(loads: Sequence[Load]) -> str:
    shares = (spread([load.share(share) for load in loads]) for share in (0.5, 0.99))
    calls = sum(len(load.answers.times) for load in loads)
    return (
        f"One replica of the webhooks, at {CALLS_A_SECOND} calls per second, {calls:,} in all: half pods at "
        "CREATE, half suspensions of protected Jobs by Kueue, which are refused. From the due time of a call to its "
        "answer, the client's own time included: p50 {} ms, p99 {} ms; ".format(*shares)
        + f"{spread([load.cpu for load in loads])} ms of CPU a call. From the request to the response, as the "
        f"replica's own histogram counts, {spread([100 * load.answers.share_within_aim for load in loads])} % were "
        f"within {AIM_SECONDS * 1e3:.0f} ms."
    )
