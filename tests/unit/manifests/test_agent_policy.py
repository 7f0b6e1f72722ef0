"""What an agent may write, as far as the chart can be read without an API server.

That an API server means the same by it is shown in tests/e2e/rights/test_agent_rights.py.
"""

from __future__ import annotations

import re
from pathlib import Path

TEMPLATES = Path(__file__).parents[3] / "manifests/chart/templates"
POLICY = (TEMPLATES / "agent/admission-policy.yaml").read_text()
RULES = (TEMPLATES / "agent/rbac.yaml").read_text()
HELPERS = (TEMPLATES / "_helpers.tpl").read_text()


def rules_with(message: str) -> list[str]:
    """The expressions that refuse with these words."""
    found: list[str] = re.findall(
        rf"- expression: ((?:(?!- expression:).)*?)\n +message: {message}\n", POLICY, re.DOTALL
    )
    return found


def test_of_its_node_it_writes_what_the_refusal_says() -> None:
    [expression] = rules_with("an agent writes annotations and labels of our own on its node only")
    assert "request.resource.resource != 'nodes' ||" in expression
    assert 'include "cedana.othersAreUnchanged" .' in expression
    assert '{{- include "cedana.metadataVariables" "object" | nindent 4 }}' in POLICY
    compared = HELPERS.partition('define "cedana.othersAreUnchanged"')[2].partition("{{- end -}}\n\n")[0]
    assert 'range $kind := list "labels" "annotations"' in compared
    for kind in ("owners", "finalizers"):
        assert f"variables.{kind}After == variables.{kind}Before" in compared


def test_of_pods_it_writes_the_status_alone() -> None:
    verbs = dict(re.findall(r"resources: \[(pods.*)\]\n +verbs: \[(.*)\]", RULES))
    assert verbs == {"pods": "get, list, watch", "pods/status": "get, patch"}
