"""Who may write what commands the agents: the rules of the chart, as far as they can be read without an API server.

That an API server means the same by them is shown in tests/e2e/rights/test_agent_rights.py.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import yaml

from cedana_sched.kube.resources import CHECKPOINTS, PREEMPTION_HOLDS, RESTORES
from cedana_sched.model.objects.names import GROUP

TEMPLATES = Path(__file__).parents[3] / "manifests/chart/templates"
RELEASE = "system:serviceaccount:cedana-system:cedana-sched"


def rendered() -> tuple[dict[str, Any], dict[str, Any]]:
    """The policy and its binding, with the names of a release called cedana-sched."""
    text = (TEMPLATES / "coordinator/admission-policy.yaml").read_text()
    text = re.sub(r"^\{\{-? \$\w+ := .*\n", "", text, flags=re.MULTILINE)
    text = re.sub(r"labels: \{\{.*\}\}", "labels: {}", text)
    text = text.replace("{{ $name }}", "cedana-sched-records").replace("{{ $account }}", RELEASE)
    assert "{{" not in text
    policy, binding = yaml.safe_load_all(text)
    return policy, binding


def test_every_write_of_every_record_is_looked_at() -> None:
    policy, binding = rendered()
    [rule] = policy["spec"]["matchConstraints"]["resourceRules"]
    plurals = {one.plural for one in (CHECKPOINTS, PREEMPTION_HOLDS, RESTORES)}
    assert set(rule["resources"]) == plurals | {f"{plural}/status" for plural in plurals}
    assert set(rule["operations"]) == {"CREATE", "UPDATE", "DELETE"}
    assert (rule["apiGroups"], rule["apiVersions"]) == ([GROUP], ["*"])
    assert policy["spec"]["failurePolicy"] == "Fail"
    assert binding["spec"] == {"policyName": policy["metadata"]["name"], "validationActions": ["Deny"]}


def test_the_coordinator_agents_and_who_may_manage_the_cluster_are_let_through() -> None:
    policy, _ = rendered()
    conditions = {one["name"]: one["expression"] for one in policy["spec"]["matchConditions"]}
    assert conditions["not-by-the-coordinator"] == f"request.userInfo.username != '{RELEASE}-coordinator'"
    answers = conditions["no-answer-of-an-agent"]
    for part in (f"'{RELEASE}-agent'", "request.operation == 'UPDATE'", "request.subResource == 'status'"):
        assert part in answers
    manages = conditions["not-by-who-may-manage-all"]
    assert ".check('manage').allowed()" in manages
    assert ".namespace(" not in manages, "rights in a namespace would be enough"
    assert len(conditions) == 3


def test_people_delete_checkpoints_and_nothing_else() -> None:
    policy, _ = rendered()
    [rule] = policy["spec"]["validations"]
    expression = " ".join(rule["expression"].split())
    whom = "(request.resource.resource == 'checkpoints' || variables.byKubernetes)"
    first, _, rest = expression.partition(" || (request.operation == 'UPDATE' && ")
    assert first == f"(request.operation == 'DELETE' && {whom})"
    assert rest.startswith("variables.byKubernetes && ")
    assert "CREATE" not in expression


def test_an_absent_subresource_is_asked_for_before_it_is_read() -> None:
    """It is absent of a request for the object itself; reading it would be an error, and refuse everybody."""
    text = " ".join((TEMPLATES / "coordinator/admission-policy.yaml").read_text().split())
    read = len(re.findall(r"request\.subResource ==", text))
    assert read == len(re.findall(r"has\(request\.subResource\) (&&|\|\|) request\.subResource ==", text)) == 2


def test_no_role_of_ours_manages_records() -> None:
    for path in TEMPLATES.rglob("*.yaml"):
        for verbs in re.findall(r"verbs: \[(.*)\]", path.read_text()):
            assert not {"manage", "*", '"*"'} & {verb.strip() for verb in verbs.split(",")}, path


def test_people_get_no_right_that_the_policy_refuses() -> None:
    text = (TEMPLATES / "roles.yaml").read_text()
    given = re.findall(r"resources: \[(.*)\]\n\s+verbs: \[(.*)\]", text)
    for resources, verbs in given:
        named = set(resources.split(", ")) & {"checkpoints", "preemptionholds", "restores"}
        written = set(verbs.split(", ")) - {"get", "list", "watch"}
        assert not written or not named or (named, written) == ({"checkpoints"}, {"delete"})
