"""Who may write our marks on a pod that is there: the rules of the chart, as far as they can be read without a server.

That an API server means the same by them is shown in tests/e2e/rights/test_called_as_ours.py.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from cedana_sched.cli.doctor.cluster.admission_policies import KEPT
from cedana_sched.model.objects import names

TEMPLATES = Path(__file__).parents[3] / "manifests/chart/templates"
TEMPLATE = TEMPLATES / "webhooks/reserved-names.yaml"
MARKS = {
    names.ID,
    names.INDEX,
    names.POLICY,
    names.QUEUE_POLICY,
    names.RESTORE_FROM,
    names.EXPECT_SNAPSHOT,
    names.RESTORE_IDENTITY,
    names.PRESTOP_TOKEN,
    names.ORIGINAL_GRACE_PERIOD,
    names.CONFIRM_DELETION,
    names.EVICTION_REQUESTED,
    names.DISRUPTION_REQUESTED,
    names.RELEASED_HOLD,
    names.NOT_PREEMPTED,
    names.NAMESPACE_UID,
    names.DERIVED_ID,
    names.NOT_PROTECTED,
    names.MISSED_BY_WEBHOOK,
    names.SECCOMP_DEFAULTED,
}


def rendered() -> dict[str, tuple[dict[str, Any], dict[str, Any]]]:
    """Policies and their bindings, by the ends of their names."""
    text = TEMPLATE.read_text()
    [marks] = re.findall(r"\$marks := list (.*) \}\}", text)
    found = {}
    for part in re.split(r'^\{\{-? \$name :?= printf "%s-', text, flags=re.MULTILINE)[1:]:
        ending, _, rest = part.partition('"')
        rest = rest.partition("\n")[2]
        rest = rest.replace(
            '{{ toJson $marks | replace "\\"" "\'" }}', json.dumps(marks.split()).replace('\\"', "").replace('"', "'")
        )
        rest = re.sub(r"^\{\{-? .*\n", "", rest, flags=re.MULTILINE)
        rest = re.sub(r"labels: \{\{.*\}\}", "labels: {}", rest).replace("{{ $name }}", ending)
        rest = re.sub(r"\{\{.*?\}\}", "[]", rest)
        policy, binding = [one for one in yaml.safe_load_all(rest) if one]
        found[ending] = policy, binding
    return found


POLICIES = rendered()


def listed(expression: str) -> set[str]:
    """The marks that an expression names."""
    return {f"{names.GROUP}/{one}" for one in re.findall(r"'([^',\[\]]+)'", expression.partition("]")[0])}


@pytest.mark.parametrize("ending", sorted(POLICIES))
def test_each_policy_denies_and_is_looked_for_by_the_doctor(ending: str) -> None:
    policy, binding = POLICIES[ending]
    assert policy["spec"]["failurePolicy"] == "Fail"
    assert binding["spec"] == {"policyName": policy["metadata"]["name"], "validationActions": ["Deny"]}
    assert ending in KEPT


def test_marks_are_looked_for_wherever_annotations_of_a_pod_are_written() -> None:
    """Strategies of the API server (pkg/registry/core/pod): its other subresources keep the annotations that it has."""
    [changes] = POLICIES["reserved-marks"][0]["spec"]["matchConstraints"]["resourceRules"]
    assert (set(changes["resources"]), changes["operations"]) == ({"pods", "pods/status"}, ["UPDATE"])
    [binds] = POLICIES["reserved-bindings"][0]["spec"]["matchConstraints"]["resourceRules"]
    assert (set(binds["resources"]), binds["operations"]) == ({"bindings", "pods/binding"}, ["CREATE"])


def test_both_policies_name_every_mark() -> None:
    variables = {one["name"]: one["expression"] for one in POLICIES["reserved-marks"][0]["spec"]["variables"]}
    assert listed(variables["marks"]) == MARKS
    conditions = {one["name"]: one["expression"] for one in POLICIES["reserved-bindings"][0]["spec"]["matchConditions"]}
    assert listed(conditions["brings-a-mark-of-ours"]) == MARKS


def test_a_binding_brings_no_label_of_ours() -> None:
    """The API server copies its labels, over those of the pod (BindingREST.setPodNodeAndMetadata, since 1.35)."""
    conditions = {one["name"]: one["expression"] for one in POLICIES["reserved-bindings"][0]["spec"]["matchConditions"]}
    annotations, labels = conditions["brings-a-mark-of-ours"].split(" || ")
    assert annotations.startswith("(has(object.metadata.annotations) &&")
    any_of_ours = f"object.metadata.labels.exists(l, l.startsWith('{names.GROUP}/'))"
    assert labels == f"(has(object.metadata.labels) && {any_of_ours})"


def test_whichever_policy_looks_at_annotations_looks_at_labels_too() -> None:
    """A write that brings one brings the other, and we believe both."""
    policies = [
        part
        for path in sorted(TEMPLATES.rglob("*.*"))
        for part in path.read_text().split("\n---\n")
        if "kind: ValidatingAdmissionPolicy\n" in part or "define " in part
    ]
    assert len(policies) > len(POLICIES)
    of_pods_and_nodes = [part for part in policies if "suspended-at" not in part]  # of Kueue's objects no label is read
    looks = [part for part in of_pods_and_nodes if "metadata.annotations" in part]
    assert looks
    assert [part[:200] for part in looks if "metadata.labels" not in part] == []


def test_rights_in_a_namespace_are_not_enough_to_bind_with_marks() -> None:
    conditions = {one["name"]: one["expression"] for one in POLICIES["reserved-bindings"][0]["spec"]["matchConditions"]}
    binds = conditions["not-by-a-scheduler-of-the-cluster"]
    assert binds.startswith("!authorizer.")
    assert ".check('create').allowed()" in binds
    assert ".namespace(" not in binds
    assert [one["expression"] for one in POLICIES["reserved-bindings"][0]["spec"]["validations"]] == ["false"]


def test_nobody_else_has_a_pod_taken_for_a_protected_one_or_a_protected_one_for_another() -> None:
    policy, _ = POLICIES["reserved-marks"]
    [condition] = [one for one in policy["spec"]["matchConditions"] if one["name"] == "changes-metadata"]
    assert "object.metadata.labels != oldObject.metadata.labels" in condition["expression"]
    _, says = [one["expression"] for one in policy["spec"]["validations"]]
    after, before = says.split(") == (")
    assert [
        f"{one}.metadata.labels['{names.PROTECTED}'] == 'true'" in text
        for one, text in (("object", after), ("oldObject", before))
    ] == [True, True]
