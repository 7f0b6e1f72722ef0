"""The section `volcano` of the adapters' settings in the coordinator's file."""

from __future__ import annotations

from cedana_sched.adapter.deletion_answers import DeletionSettings


class Settings(DeletionSettings):
    """Beside what all adapters that answer deletions have."""

    other_labels: frozenset[str] = frozenset()
    """Labels of pods whose deletions another adapter answers, although Volcano schedules them."""
