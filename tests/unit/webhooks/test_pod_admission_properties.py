"""What holds for every pod: what was there stays, and a second call changes nothing but the preStop token."""

from __future__ import annotations

import copy
import json
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from cedana_sched.kube.client import Object
from cedana_sched.model.objects import names
from cedana_sched.model.records import CheckpointStep
from cedana_sched.testing.patches import apply_json_patch
from cedana_sched_webhooks import pod_admission
from cedana_sched_webhooks.caches import AdmissionCaches
from cedana_sched_webhooks.json_patch import patch_operations
from tests.unit.webhooks.admission_builders import checkpoint, configuration, creation, knowledge, namespace, node, pod

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text("ab~/0", max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text("ab~/0", max_size=3), inner, max_size=3),
    max_leaves=12,
)

WORDS = st.text("abcxyz", min_size=1, max_size=4)
TEXTS = st.dictionaries(WORDS.map(lambda word: f"example.com/{word}"), WORDS, max_size=3)
EXPRESSION = st.fixed_dictionaries({"key": WORDS, "operator": st.just("In"), "values": st.lists(WORDS, max_size=2)})
TERM = st.fixed_dictionaries({}, optional={"matchExpressions": st.lists(EXPRESSION, max_size=2)})
REQUIRED = st.fixed_dictionaries({"nodeSelectorTerms": st.lists(TERM, min_size=1, max_size=3)})
AFFINITY = st.fixed_dictionaries(
    {},
    optional={
        "nodeAffinity": st.fixed_dictionaries(
            {}, optional={"requiredDuringSchedulingIgnoredDuringExecution": REQUIRED}
        ),
        "podAffinity": st.dictionaries(WORDS, WORDS, max_size=2),
    },
)
HANDLER = st.fixed_dictionaries({"exec": st.fixed_dictionaries({"command": st.lists(WORDS, max_size=2)})})
LIFECYCLE = st.fixed_dictionaries({}, optional={"preStop": HANDLER, "postStart": HANDLER})
RESOURCES = st.fixed_dictionaries(
    {},
    optional={
        kind: st.dictionaries(st.sampled_from(["cpu", "memory", "gpu"]), WORDS) for kind in ("limits", "requests")
    },
)
CONTAINER = st.fixed_dictionaries(
    {"name": WORDS}, optional={"lifecycle": LIFECYCLE | st.none(), "resources": RESOURCES, "env": st.none()}
)
NAMED = st.fixed_dictionaries({"name": WORDS})


@st.composite
def any_pod(draw: st.DrawFn) -> Object:
    body = pod("sim", annotations=draw(TEXTS), labels=draw(TEXTS))
    body["spec"]["containers"] += draw(st.lists(CONTAINER, max_size=2))
    optional = {
        "initContainers": st.lists(CONTAINER, max_size=2) | st.none(),
        "volumes": st.lists(NAMED, max_size=2) | st.none(),
        "schedulingGates": st.lists(NAMED, max_size=2),
        "affinity": AFFINITY | st.none(),
        "nodeSelector": TEXTS | st.none(),
        "runtimeClassName": st.sampled_from(["cedana", "other"]) | st.none(),
        "nodeName": st.just("node1"),
        "terminationGracePeriodSeconds": st.integers(0, 1000) | st.none(),
    }
    body["spec"] |= draw(st.fixed_dictionaries({}, optional=optional))
    for kind in draw(st.sets(st.sampled_from(["labels", "annotations"]))):
        body["metadata"].pop(kind)
    return body


@st.composite
def anything_known(draw: st.DrawFn) -> AdmissionCaches:
    likely = [CheckpointStep.READY, CheckpointStep.READY, CheckpointStep.DUMPING, CheckpointStep.FAILED]
    steps = draw(st.lists(st.sampled_from(likely), max_size=3))
    generations = draw(st.lists(st.integers(1, 9), min_size=len(steps), max_size=len(steps)))
    return knowledge(
        checkpoints=[checkpoint(one, step=step) for one, step in zip(generations, steps, strict=True)],
        nodes=[node("node1", cpu="aaa")] if draw(st.booleans()) else [],
        namespaces=[
            namespace(
                "lab", **{"pod-security.kubernetes.io/enforce": draw(st.sampled_from(["baseline", "privileged"]))}
            )
        ],
    )


def mutated(body: Object, known: AdmissionCaches) -> Object:
    answer = pod_admission.admit_pod(creation(body), known, configuration())
    assert answer.refusal is None
    return apply_json_patch(body, answer.patch)


@settings(deadline=None)
@given(any_pod(), anything_known())
def test_what_was_there_stays(before: Object, known: AdmissionCaches) -> None:
    untouched = copy.deepcopy(before)
    after = mutated(before, known)
    assert before == untouched, "the request is not changed"
    assert_within(before["metadata"], after["metadata"])
    old, new = dict(before["spec"]), dict(after["spec"])
    assert (new.pop("terminationGracePeriodSeconds", None) or 0) >= (
        old.pop("terminationGracePeriodSeconds", None) or 0
    )
    assert new.pop("runtimeClassName", None) in {old.pop("runtimeClassName", None), "cedana"}
    assert_terms_kept(old.pop("affinity", None), new.pop("affinity", None))
    assert_within(old, new)


def assert_within(old: Any, new: Any) -> None:
    """Everything in `old` is in `new`: of lists every element, and in the same order."""
    if isinstance(old, dict):
        for key, value in old.items():
            assert key in new, key
            if value is not None:  # a null says nothing, and may be filled
                assert_within(value, new[key])
    elif isinstance(old, list):
        rest = iter(new)
        for value in old:
            assert any(contains(other, value) for other in rest), value
    else:
        assert new == old


def contains(new: Any, old: Any) -> bool:
    try:
        assert_within(old, new)
    except AssertionError:
        return False
    return True


def assert_terms_kept(old: Any, new: Any) -> None:
    """Each alternative still asks for all that it asked for, and there is no new one beside the user's."""
    for kind, value in (old or {}).items():
        if kind != "nodeAffinity":
            assert new[kind] == value
    required = "requiredDuringSchedulingIgnoredDuringExecution"
    before = ((old or {}).get("nodeAffinity") or {}).get(required)
    if before:
        after = new["nodeAffinity"][required]["nodeSelectorTerms"]
        assert len(after) == len(before["nodeSelectorTerms"])
        for one, other in zip(before["nodeSelectorTerms"], after, strict=True):
            assert contains(other, one)
            assert bool(one.get("matchExpressions")) == bool(other.get("matchExpressions"))


@settings(deadline=None)
@given(any_pod(), anything_known())
def test_a_second_call_changes_nothing_but_the_token(before: Object, known: AdmissionCaches) -> None:
    after = mutated(before, known)
    second = pod_admission.admit_pod(creation(after), known, configuration())
    assert second.decision == "unchanged"
    assert without_token(apply_json_patch(after, second.patch)) == without_token(after)


def without_token(body: Object) -> Object:
    """The pod with the same token as any other."""
    text = json.dumps(body)
    token = body["metadata"]["annotations"].get(names.PRESTOP_TOKEN)
    shown: Object = json.loads(text if token is None else text.replace(token, "token"))
    return shown


@settings(deadline=None)
@given(any_pod(), anything_known())
def test_a_foreign_runtime_class_is_never_changed_and_never_with_a_restore(
    before: Object, known: AdmissionCaches
) -> None:
    before["spec"]["runtimeClassName"] = "other"
    after = mutated(before, known)
    assert after["spec"]["runtimeClassName"] == "other"
    assert names.RESTORE_IDENTITY not in after["metadata"]["annotations"]


@settings(deadline=None)
@given(JSON, JSON)
def test_the_difference_of_any_two_values_turns_one_into_the_other(before: Any, after: Any) -> None:
    wrapped = apply_json_patch({"value": before}, patch_operations({"value": before}, {"value": after}))
    assert repr(wrapped["value"]) == repr_of(after, wrapped["value"])


def repr_of(expected: Any, like: Any) -> str:
    """True is not 1 here; the order of keys does not matter."""
    assert expected == like
    return repr(like)
