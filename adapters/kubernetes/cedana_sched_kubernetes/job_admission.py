"""Failure accounting of Jobs: a pod that is evicted, and saved, is no failure of its Job.

A Job counts every pod that is deleted or fails towards `backoffLimit`. A rule of its `podFailurePolicy` excepts pods
with the condition `DisruptionTarget` (Kubernetes, "Handling retriable and non-retriable pod failures with Pod failure
policy"). The field is immutable, so the rule is added at CREATE. It requires `restartPolicy: Never`, and that pods are
replaced only once they have ended: `podReplacementPolicy: Failed`. The API server writes the other value into each Job
that names none, before it calls webhooks, so that nothing shows who chose it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from cedana_sched.kube.builtin_kinds import DISRUPTED
from cedana_sched.kube.client import Object
from cedana_sched.model.errors import UsageError
from cedana_sched_webhooks.admission import Answer, Request
from cedana_sched_webhooks.identity import is_protection_requested, is_without_id

IGNORE_RULE: Final[Object] = {"action": "Ignore", "onPodConditions": [{"type": DISRUPTED, "status": "True"}]}
_NOT_OURS: Final = Answer("not-ours")


class JobAdmission:
    """Admission handler for Jobs at CREATE.

    Args:
        is_protected: returns whether an admin protects the pods of a Job, which names no id, in a namespace.
    """

    def __init__(self, is_protected: Callable[[Object, str], bool]) -> None:
        self._is_protected_by_admin = is_protected

    async def answer(self, request: Request) -> Answer:
        """Return the rule as a patch, or a warning where it cannot be added."""
        spec = (request.object or {}).get("spec") or {}
        template = spec.get("template") or {}
        if request.object is None or not self._is_protected(request.object, template, request.namespace):
            return _NOT_OURS
        rules = (spec.get("podFailurePolicy") or {}).get("rules") or []
        if any(_is_about_disruptions(rule) for rule in rules):
            return Answer("unchanged")
        restart_policy = (template.get("spec") or {}).get("restartPolicy")
        if restart_policy != "Never":
            field, counted = "spec.template.spec.restartPolicy", "makes the Job count each evicted pod (backoffLimit)"
            error = UsageError(field, restart_policy, counted, remedy="write Never")
            return Answer("counts", warnings=(f"cedana: {error}",))
        policy = {**(spec.get("podFailurePolicy") or {}), "rules": [IGNORE_RULE, *rules]}
        fields = {"podFailurePolicy": policy, "podReplacementPolicy": "Failed"}
        patch = tuple({"op": "add", "path": f"/spec/{field}", "value": value} for field, value in fields.items())
        return Answer("ignores", patch=patch)

    def _is_protected(self, job: Object, template: Object, namespace: str) -> bool:
        if is_protection_requested(template):
            return True
        return bool(template) and is_without_id(template) and self._is_protected_by_admin(job, namespace)


def _is_about_disruptions(rule: dict[str, Any]) -> bool:
    return any(one.get("type") == DISRUPTED for one in rule.get("onPodConditions") or ())
