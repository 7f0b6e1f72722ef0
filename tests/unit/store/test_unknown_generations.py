"""Who asks for a generation that is not there is told in a sentence which there are, however many that be."""

from __future__ import annotations

import pytest

from cedana_sched.model.identity import Identity, SnapshotRef
from cedana_sched.store.backend import Entry
from cedana_sched.store.catalogue import _not_found
from cedana_sched.store.generation_names import Generations

MD = Identity("bio", "md")


@pytest.mark.parametrize(
    ("there", "said"),
    [(0, "none"), (3, "1, 2, 3"), (3_000, "2980 older, 2981, 2982"), (20, "1, 2"), (21, "1 older, 2, 3")],
)
def test_the_newest_are_named(there: int, said: str) -> None:
    refs = [SnapshotRef(MD, number) for number in range(1, there + 1)]
    known = Generations({ref: Entry(str(ref), 1, 1.0) for ref in refs}, set())
    text = str(_not_found(SnapshotRef(MD, 9_999), known))
    assert f"generations there are: {said}" in text
    assert len(text) < 300
