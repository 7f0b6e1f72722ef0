"""A component may read and write the kinds that its code names, and no others of Kubernetes' or ours.

It looks at names alone; which verbs are used, a reader must see.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from cedana_sched.kube import resources
from cedana_sched.kube.resources import Resource

ROOT = Path(__file__).parents[3]
KINDS = {name: one for name, one in vars(resources).items() if isinstance(one, Resource)}
SHARED = ("cedana_sched/kube", "cedana_sched/adapter", "cedana_sched/component")
"""What components are made of beside their own code; the file with all kinds is left out."""
CODE = {
    "agent": ("cedana_sched/cluster/node", "cedana_sched/agent"),
    "coordinator": (
        "cedana_sched/cluster/coordinator",
        "cedana_sched/coordinator",
        "webhooks/cedana_sched_webhooks/replica_numbers.py",
    ),
    "webhooks": ("webhooks/cedana_sched_webhooks", "adapters"),
}

ROLES = ("rbac.yaml", "credentials.yaml")
OF_OTHERS = {
    "agent": {"leases", "preemptionholds"},
    "coordinator": set[str](),
    "webhooks": {"checkpointstorages", "configmaps", "events", "leases", "services"},
}
"""What code that components share names, and this one does not run."""


def given(component: str) -> set[str]:
    """Kinds in the rules of its role, as plurals and without subresources."""
    folder = ROOT / "manifests/chart/templates" / component
    text = "".join((folder / name).read_text() for name in ROLES if (folder / name).exists())
    found = re.findall(r"resources: \[(.+)\]", text)
    return {word.strip().partition("/")[0] for words in found for word in words.split(",")}


def named(component: str) -> set[str]:
    """Kinds that its code names."""
    places = [ROOT / place for place in (*CODE[component], *SHARED)]
    files = [file for place in places for file in ([place] if place.is_file() else place.rglob("*.py"))]
    words = set[str]()
    for file in files:
        if file != Path(resources.__file__):
            words |= set(re.findall(r"\b[A-Z_]+\b", file.read_text()))
    return {one.plural for name, one in KINDS.items() if name in words}


@pytest.mark.parametrize("component", CODE)
def test_no_right_is_given_that_nothing_uses(component: str) -> None:
    ours = {one.plural for one in KINDS.values()}
    rights = given(component) & ours
    assert "pods" in rights
    assert rights - named(component) == set()


@pytest.mark.parametrize("component", CODE)
def test_every_kind_that_code_names_is_given(component: str) -> None:
    assert named(component) - given(component) == OF_OTHERS[component]
