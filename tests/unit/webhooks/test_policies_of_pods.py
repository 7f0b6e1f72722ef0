"""Which policy a new pod has: none that is not for its namespace, and its queue's unless that one lets pods choose."""

from __future__ import annotations

from typing import Any

import pytest

from cedana_sched.kube.client import Object
from cedana_sched.kube.own_kinds.cached_policy import CachedPolicy
from cedana_sched.model.objects import names
from cedana_sched.testing.patches import apply_json_patch
from cedana_sched_webhooks import pod_admission
from cedana_sched_webhooks.admission import Answer
from tests.unit.webhooks.admission_builders import checkpoint, configuration, creation, knowledge, pod, policy

ONLY_BIO = {"allowedNamespaces": {"from": "Names", "names": ["bio"]}}
POLICIES = (
    policy("stays", onCheckpointFailure="KeepRunning", **ONLY_BIO),
    policy("unlisted", onCheckpointFailure="KeepRunning", imageMayChange=True, deadlineSeconds=45),
    policy("all", imageMayChange=True, deadlineSeconds=45, allowedNamespaces={"from": "All"}),
    policy("nobody", allowedNamespaces={"from": "Names"}),
    policy("strict", deadlineSeconds=60),
    policy("open", deadlineSeconds=60, podsMayChoose=True),
    policy("default", onCheckpointFailure="KeepRunning"),
)


def ask(body: Object, namespace: str = "lab", policies: tuple[CachedPolicy, ...] = POLICIES) -> Answer:
    return pod_admission.admit_pod(creation(body, namespace), knowledge(policies=policies), configuration())


def named(own: str | None = None, of_queue: str | None = None) -> Object:
    told = {names.POLICY: own, names.QUEUE_POLICY: of_queue}
    return pod(annotations={key: name for key, name in told.items() if name is not None})


def written(body: Object, answer: Answer) -> Any:
    return apply_json_patch(body, answer.patch)["metadata"]["annotations"]


@pytest.mark.parametrize(("name", "namespace"), [("stays", "lab"), ("nobody", "bio"), ("nobody", "lab")])
def test_a_pod_that_names_a_policy_of_others_is_not_protected(name: str, namespace: str) -> None:
    for body in (named(name), named(of_queue=name)):
        answer = ask(body, namespace)
        assert answer.decision == "unclear"
        assert written(body, answer)[names.NOT_PROTECTED] == (
            f"metadata.annotations[{names.POLICY}]: '{name}' is not for pods of namespace {namespace} "
            "(name another one, or have an admin add the namespace to its spec.allowedNamespaces)"
        )


@pytest.mark.parametrize("name", ["stays", "nobody", "gone", "broken"])
@pytest.mark.parametrize(
    "default", [policy("default"), policy("default", deadlineSeconds=-1)], ids=["", "broken default"]
)
def test_a_pod_that_has_a_snapshot_continues_all_the_same(name: str, default: CachedPolicy) -> None:
    known = knowledge(
        policies=(*POLICIES[:-1], policy("broken", deadlineSeconds=-1), default), checkpoints=[checkpoint(1)]
    )
    for body in (named(name), named(of_queue=name)):
        answer = pod_admission.admit_pod(creation(body), known, configuration())
        assert answer.decision == "restores"
        assert written(body, answer)[names.RESTORE_IDENTITY].endswith("@1")
        assert answer.warnings[0].startswith("cedana: the policy 'default' counts: metadata.annotations[")


@pytest.mark.parametrize(
    ("of_queue", "counts"), [("gone", "gone"), ("broken", "broken"), ("stays", "stays"), ("open", "nobody")]
)
def test_a_pod_that_continues_by_the_default_has_no_policy_that_would_go_before_its_queues(
    of_queue: str, counts: str
) -> None:
    """Whoever looks at the pod later goes by the name that stands on it."""
    known = knowledge(policies=(*POLICIES, policy("broken", deadlineSeconds=-1)), checkpoints=[checkpoint(1)])
    body = named("nobody" if of_queue == "open" else "all", of_queue)
    answer = pod_admission.admit_pod(creation(body), known, configuration())
    assert answer.decision == "restores"
    once = apply_json_patch(body, answer.patch)
    assert once["metadata"]["annotations"][names.POLICY] == counts
    again = pod_admission.admit_pod(creation(once), known, configuration())
    assert apply_json_patch(once, again.patch)["metadata"]["annotations"][names.POLICY] == counts


@pytest.mark.parametrize(("name", "namespace"), [("stays", "bio"), ("all", "lab"), ("default", "lab")])
def test_a_pod_may_have_what_its_namespace_may_have(name: str, namespace: str) -> None:
    answer = ask(named(name), namespace)
    assert (answer.decision, answer.warnings) == ("identified", ())


def test_what_a_policy_would_weaken_and_does_not_say_for_whom_is_said_to_count_for_nobody() -> None:
    answer = ask(named("unlisted"))
    assert answer.decision == "identified"
    (warning,) = answer.warnings
    assert "'unlisted' says spec.onCheckpointFailure, spec.imageMayChange, which applies to no pod" in warning
    assert "spec.allowedNamespaces" in warning
    assert apply_json_patch(named("unlisted"), answer.patch)["spec"]["terminationGracePeriodSeconds"] == 75, (
        "all else counts"
    )


@pytest.mark.parametrize(
    ("own", "of_queue", "counts", "is_overruled"),
    [
        ("all", None, "all", False),
        (None, "strict", "strict", False),
        ("strict", "strict", "strict", False),
        ("all", "strict", "strict", True),
        ("all", "open", "all", False),
        ("all", "default", "all", False),
        ("", "strict", "strict", False),
    ],
)
def test_the_queues_policy_counts_unless_it_lets_pods_choose(
    own: str | None, of_queue: str | None, counts: str, is_overruled: bool
) -> None:
    body = named(own, of_queue)
    answer = ask(body)
    assert answer.decision == "identified"
    assert written(body, answer)[names.POLICY] == counts
    assert [f"'{own}' does not count: the queue's policy is 'strict'" in one for one in answer.warnings] == (
        [True] if is_overruled else []
    )
    deadline = {"all": 45, "strict": 60}[counts]
    assert apply_json_patch(body, answer.patch)["spec"]["terminationGracePeriodSeconds"] == deadline + 30


def test_default_of_a_queue_goes_first_where_it_says_so() -> None:
    policies = (*POLICIES[:-1], policy("default", podsMayChoose=False))
    body = named("all", "default")
    assert written(body, ask(body, policies=policies))[names.POLICY] == "default"


def test_a_pod_may_not_choose_what_is_not_for_its_namespace() -> None:
    assert ask(named("stays", "open")).decision == "unclear"
    assert ask(named("stays", "open"), "bio").decision == "identified"


def test_a_policy_of_a_queue_that_does_not_exist_is_not_replaced_by_the_pods_own() -> None:
    answer = ask(named("all", "gone"))
    assert answer.decision == "unclear"
    assert "'gone' is no CheckpointPolicy" in answer.warnings[0]


def test_called_again_it_finds_its_own() -> None:
    body = named("all", "strict")
    once = apply_json_patch(body, ask(body).patch)
    assert ask(once).decision == "unchanged"
