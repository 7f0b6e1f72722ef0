"""Prometheus metrics of the Armada adapter, besides those of every adapter; a process runs one Armada adapter."""

from __future__ import annotations

from typing import Final

from prometheus_client import Counter, Gauge

PREEMPTED: Final = Counter(
    "cedana_sched_armada_preempted_jobs_total",
    "Preempted jobs, by what became of them: resubmitted, or left as Armada left them.",
    ["outcome"],
)
FOLLOWED: Final = Gauge("cedana_sched_armada_job_sets_watched", "Job sets whose events are followed now.")
FAILURES: Final = Counter(
    "cedana_sched_armada_watch_failures_total", "Attempts to follow the events of a job set that failed."
)
