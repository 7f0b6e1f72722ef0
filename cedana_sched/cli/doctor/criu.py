"""Checks of CRIU: presence, origin, and the features of CRIU and this kernel."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from cedana_sched.cli.doctor.check_runner import Finding, Level

if TYPE_CHECKING:
    from cedana_sched.snapshot.criu_toolchain import Toolchain
    from cedana_sched.snapshot.features import Fact


def toolchain(*, prepare: bool) -> Iterator[Finding]:
    """Check the product's CRIU toolchain; with `prepare`, build a missing one now."""
    from cedana_sched.snapshot.criu_toolchain import ensure_toolchain, find_toolchain
    from cedana_sched.snapshot.features import check_features

    found = ensure_toolchain(try_again=True) if prepare else find_toolchain()
    if found is None:
        message = "is not on this machine yet; the engine makes it at its first start (20 MB of Debian's packages)"
        yield Finding("criu", Level.WARN, message, "make it now with 'cedana-sched doctor --prepare'")
        return
    for fact in check_features(found):
        yield _feature_finding(fact)
    yield check_package_origin(found)


def check_package_origin(found: Toolchain) -> Finding:
    """Check whether the toolchain was built from the packages that this version was tested with."""
    from cedana_sched.snapshot.criu_toolchain import OLDER_REMEDY, SYSTEM_CRIU_VARIABLE, Origin

    match found.origin:
        case Origin.PINNED:
            return Finding("criu", Level.OK, "made from the packages of Debian that this version pins by their digests")
        case Origin.MACHINE:
            message = f"{SYSTEM_CRIU_VARIABLE} names {found.criu}: not made from the packages that this version pins"
            return Finding("criu", Level.OK, message)
        case Origin.OLDER:
            message = "made by another version; the engine makes its own at its next start, if it has not tried before"
            return Finding("criu", Level.WARN, message, OLDER_REMEDY)
        case Origin.SERVED:
            folder = found.criu.parents[1]
            message = "made from what Debian testing had, verified by Debian's signatures: the packages "
            return Finding(
                "criu", Level.WARN, message + "that this version pins could not be had",
                f"to try again, let this machine reach snapshot.debian.org, delete {folder} while no engine runs, "
                "and run 'cedana-sched doctor --prepare'",
            )  # fmt: skip


def _feature_finding(fact: Fact) -> Finding:
    if fact.good:
        return Finding("criu", Level.OK, fact.sentence)
    return Finding("criu", Level.FAIL if fact.needed else Level.WARN, fact.sentence, "use a newer kernel")
