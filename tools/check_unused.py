"""Finds functions, methods, attributes and variables of the product that nothing but tests uses, by vulture.

A part of `make lint`. Scripts of `tools/` and the demo count as users, tests do not: what only a test calls is kept for
no user. vulture goes by names, whatever object they belong to, so it misses some and is seldom wrong.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from fnmatch import fnmatchcase
from pathlib import Path
from typing import NamedTuple

from vulture import Vulture

ROOT = Path(__file__).resolve().parents[1]

PRODUCT = ("adapters", "cedana_sched", "webhooks")
USERS = ("demo", "tools")

CALLED_BY_LIBRARIES = ["@app.callback", "@field_validator", "@model_validator"]
"""Decorators of functions that typer and pydantic call."""


class Used(NamedTuple):
    """Names that are used although no code of the product mentions them; both patterns as in `fnmatch`."""

    why: str
    path: str
    names: tuple[str, ...]


USED = (
    Used("mypy reads it: whether a class fulfils a protocol", "*", ("_fulfils",)),
    Used("a protocol of a function", "cedana_sched/store/sealing/seal.py", ("__call__",)),
    Used("pydantic reads it", "cedana_sched/*", ("model_config",)),
    Used("typer reads them", "cedana_sched/cli/command_registration.py", ("__signature__", "__annotations__")),
    Used("pytest calls them, in the suite of an adapter's author", "cedana_sched/adapter/conformance/*", ("test_*",)),
    Used(
        "an adapter's author derives the stage from it",
        "cedana_sched/adapter/conformance/cluster_stage.py",
        ("ClusterStage", "put_pod", "change_pod"),
    ),
    Used("a pod is encoded again, for the rules of identities", "cedana_sched/kube/builtin_kinds.py", ("value_from",)),
    Used("settings of the client's library", "cedana_sched/kube/client.py", ("connection_*", "disable_*")),
    Used("the client's library reads it", "cedana_sched/kube/credentials.py", ("token_expires_at",)),
    Used("a field of Armada's message", "adapters/armada/cedana_sched_armada/successor.py", ("external_job_uri",)),
    Used("loaded by its entry point", "adapters/*/webhooks.py", ("*Webhooks",)),
    Used("tests of adapters' authors call them", "cedana_sched/testing/watches.py", ("bookmark", "compact")),
    Used("keys of dictionaries", "adapters/kubernetes/cedana_sched_kubernetes/webhooks.py", ("[a-z]*[A-Z]*",)),
    Used("keys of dictionaries", "adapters/kubernetes/cedana_sched_kubernetes/disruption_hold.py", ("[a-z]*[A-Z]*",)),
    Used("keys of dictionaries", "adapters/kueue/cedana_sched_kueue/webhooks.py", ("[a-z]*[A-Z]*", "active")),
    Used("keys of dictionaries", "webhooks/cedana_sched_webhooks/admission_types.py", ("*",)),
    Used("keys of dictionaries", "adapters/volcano/cedana_sched_volcano/vcjob_admission.py", ("[a-z]*[A-Z]*",)),
    Used("kubectl shows it", "cedana_sched/model/objects/checkpoint.py", ("read_size", "stored_size")),
    Used("kubectl shows it", "cedana_sched/model/objects/checkpoint_storage.py", ("last_probe_time",)),
    Used("`snapshots gc --output json` has it", "cedana_sched/store/garbage.py", ("rescued_packs", "removed_others")),
    Used(
        "read by its index among `_fields`",
        "cedana_sched/runtime_handler/privilege_comparison.py",
        ("effective", "inheritable"),
    ),
)


class Item(NamedTuple):
    path: str
    line: int
    kind: str
    name: str


def unused(root: Path) -> list[Item]:
    """Return what vulture finds in the product below `root`."""
    vulture = Vulture(ignore_decorators=CALLED_BY_LIBRARIES)
    vulture.scavenge([str(root / folder) for folder in (*PRODUCT, *USERS) if (root / folder).is_dir()])
    found = (
        Item(Path(one.filename).relative_to(root).as_posix(), one.first_lineno, one.typ, one.name)
        for one in vulture.get_unused_code()
    )
    return [one for one in found if one.path.startswith(PRODUCT)]


def complaints(found: Iterable[Item], used: Iterable[Used] = USED) -> Iterator[str]:
    """Yield what is unused without a reason, and each reason for which there is nothing any more."""
    allowed = {(one, name): False for one in used for name in one.names}
    for item in found:
        reasons = [key for key in allowed if fnmatchcase(item.path, key[0].path) and fnmatchcase(item.name, key[1])]
        allowed |= dict.fromkeys(reasons, True)
        if not reasons:
            yield f"{item.path}:{item.line}: {item.kind} {item.name} is used by no code but tests: remove it"
    for (one, name), is_needed in allowed.items():
        if not is_needed:
            yield f"tools/check_unused.py: USED need not name {name} of {one.path} any more"


def main() -> int:
    found = list(complaints(unused(ROOT)))
    for complaint in found:
        print(complaint, file=sys.stderr)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
