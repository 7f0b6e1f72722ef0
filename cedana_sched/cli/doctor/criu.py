"""CRIU: whether it is here, whether it runs on this kernel, and what the two can do together."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from cedana_sched.cli.doctor.findings import Finding, Level

if TYPE_CHECKING:
    from cedana_sched.snapshot.features import Fact


def toolchain(*, prepare: bool) -> Iterator[Finding]:
    """The CRIU that comes along; with `prepare` it is made now if it is not there."""
    from cedana_sched.snapshot.features import check_features
    from cedana_sched.snapshot.toolchain import ensure_toolchain, find_toolchain

    found = ensure_toolchain() if prepare else find_toolchain()
    if found is None:
        says = "is not on this machine yet; the engine makes it at its first start (20 MB of Debian's packages)"
        yield Finding("criu", Level.WARN, says, "make it now with 'cedana-sched doctor --prepare'")
        return
    for fact in check_features(found):
        yield _finding(fact)


def _finding(fact: Fact) -> Finding:
    if fact.good:
        return Finding("criu", Level.OK, fact.sentence)
    return Finding("criu", Level.FAIL if fact.needed else Level.WARN, fact.sentence, "use a newer kernel")
