"""Whatever a snapshot says of its pod, the agent refuses it in words, or goes on with what it can use."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from cedana_sched.cluster.node.containers.privileges import IMAGES, PRIVILEGES, SERVICE_ACCOUNT
from cedana_sched.cluster.node.restoring.privilege_checks import (
    recorded_privileges,
    refuse_other_images,
    refuse_other_service_account,
)
from cedana_sched.cluster.node.restoring.restore_preparation import _names_from_facts
from cedana_sched.kube.builtin_kinds import Container, Metadata, Pod, PodSpec
from cedana_sched.model.errors import RestoreError
from cedana_sched.runtime_handler.privilege_comparison import Privileges, restore_objection_to
from cedana_sched.runtime_handler.privilege_record import encode
from tests.unit.cluster.node.restoring.test_returning_privileges import SAME
from tests.unit.store.test_any_bytes_in_the_store import places, replaced

POD = Pod(
    Metadata(name="md-0"),
    PodSpec(
        containers=(Container("main", "md:1"), Container("log", "log:1")),
        init_containers=(Container("first", "first:1"),),
        service_account_name="md",
    ),
)
FACTS: dict[str, Any] = json.loads(json.dumps({
    "containers": ["main", "log"],
    "volumes": ["scratch"],
    IMAGES: {"main": "md:1", "log": "log:1"},
    SERVICE_ACCOUNT: "md",
    PRIVILEGES: {"main": encode(SAME), "log": encode(SAME)},
}))  # fmt: skip
"""As they are read back: JSON has no tuples."""
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats() | st.text(max_size=9)
    | st.sampled_from(["../../x", "/etc", "a/b", "\0", "x" * 300, "main", "9" * 5_000]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["main", "x", ""]), inner),
)  # fmt: skip


def used(facts: dict[str, Any]) -> dict[str, Privileges]:
    """All that the agent reads of them before it lays anything.

    Raises:
        RestoreError: it refuses them.
    """
    names = _names_from_facts(facts, "containers")
    assert all(isinstance(name, str) for name in (*names, *_names_from_facts({"volumes": []} | facts, "volumes")))
    privileges = recorded_privileges(facts)
    refuse_other_images(facts, names, POD)
    refuse_other_service_account(facts, POD)
    return privileges


@given(st.sampled_from(places(FACTS)), VALUES)
@settings(deadline=None, max_examples=400)
def test_facts_with_anything_in_one_place(place: tuple[Any, ...], by: Any) -> None:
    changed = replaced(FACTS, place, by)
    if not isinstance(changed, dict):
        return  # the manifest says that it is one
    try:
        privileges = used(changed)
    except RestoreError:
        return
    assert changed[IMAGES].items() >= FACTS[IMAGES].items()
    assert changed[SERVICE_ACCOUNT] == "md"
    for one in privileges.values():
        said = restore_objection_to(one, SAME.container)
        assert said is None or isinstance(said, str)


def test_the_good_facts_of_these_tests_are_used() -> None:
    assert used(FACTS) == {"main": SAME, "log": SAME}
