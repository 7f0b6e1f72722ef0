"""Pods that need no id of their own, because an admin protects all pods of a queue or a namespace.

They get their controller's id before the pod webhook sees them, and the policy that the admin chose is annotated on all
of them, including those that name an id.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import Any, Final

import msgspec

from cedana_sched.kube.client import Object
from cedana_sched.model.errors import UsageError
from cedana_sched.model.objects import names
from cedana_sched.model.objects.object_names import derived_id
from cedana_sched.model.pod_indexing import REVISION
from cedana_sched.model.served_namespaces import ServedNamespaces
from cedana_sched_webhooks.admission import Answer, Request
from cedana_sched_webhooks.identity import is_without_id
from cedana_sched_webhooks.json_patch import patch_operations

NOT_OURS: Final = Answer("not-ours")


class Protection(msgspec.Struct, frozen=True):
    """An admin's decision to protect a pod. `role`: part of the id that the pod webhook appends; empty: none.

    `warnings`: what the pod's author should know of the decision.
    """

    policy: str | None = None
    role: str = ""
    warnings: tuple[str, ...] = ()


class OptIn:
    """Admission handler for pods at CREATE.

    Args:
        protection_of: returns the decision on a pod in a namespace; None if it is not protected.
        served: namespaces whose pods are mutated.
        is_only_source: whether no other adapter can have written the policy of a queue on a pod, so that one that it
            has is its author's, and is removed.
    """

    def __init__(
        self,
        protection_of: Callable[[Object, str], Protection | None],
        served: ServedNamespaces,
        *,
        is_only_source: Callable[[Object], bool] = lambda _: False,
    ) -> None:
        self._protection_of = protection_of
        self._served = served
        self._is_only_source = is_only_source

    async def answer_pod_admission(self, request: Request) -> Answer:
        """Return the annotations for the pod as a patch."""
        pod = request.object
        if pod is None or not self._served.includes(request.namespace):
            return NOT_OURS
        own = _annotations_of(pod)
        warnings: tuple[str, ...] = ()
        if names.QUEUE_POLICY in own and self._is_only_source(pod):
            own, warnings = _without_queue_policy(own)
        if (protection := self._protection_of(pod, request.namespace)) is None:
            return _answer_unchosen(NOT_OURS, pod, own, warnings)
        chosen, warnings = _policy_annotation(protection), (*warnings, *protection.warnings)
        if not is_without_id(pod):
            if not chosen:
                return _answer_unchosen(NOT_OURS, pod, own, warnings)
            return Answer("named", patch=_build_patch(pod, own | chosen), warnings=warnings)
        if not (given := _identity_annotations(pod, protection)):
            return _answer_unchosen(Answer("alone"), pod, own, warnings)
        return Answer("protected", patch=_build_patch(pod, given | own | chosen), warnings=warnings)

    def annotations_for(self, pod: Object) -> dict[str, str]:
        """Return the annotations that a protected pod gets; one that names an id gets only the policy."""
        protection = self._protection_of(pod, pod["metadata"]["namespace"])
        if protection is None:
            return {}
        return _identity_annotations(pod, protection) if is_without_id(pod) else _policy_annotation(protection)


def find_controller_reference(pod: Object) -> dict[str, Any] | None:
    """Return the owner reference of the pod's controller; None if it has none."""
    owners = pod["metadata"].get("ownerReferences") or ()
    return next((owner for owner in owners if owner.get("controller")), None)


def _answer_unchosen(answer: Answer, pod: Object, own: dict[str, str], warnings: tuple[str, ...]) -> Answer:
    """Return the answer for a pod for which no policy is chosen; `own`: what its author may write."""
    if own == _annotations_of(pod):
        return answer
    return Answer("unchosen", patch=_build_patch(pod, own), warnings=warnings)


def _without_queue_policy(annotations: dict[str, str]) -> tuple[dict[str, str], tuple[str, ...]]:
    """Return the annotations without the policy of a queue, and what the pod's author should know of that."""
    field, remedy = f"metadata.annotations[{names.QUEUE_POLICY}]", f"name a policy in {names.POLICY}"
    error = UsageError(field, annotations[names.QUEUE_POLICY], "is taken away: an admin's queue has it", remedy=remedy)
    return {key: value for key, value in annotations.items() if key != names.QUEUE_POLICY}, (f"cedana: {error}",)


def _policy_annotation(protection: Protection) -> dict[str, str]:
    return {names.QUEUE_POLICY: protection.policy} if protection.policy else {}


def _identity_annotations(pod: Object, protection: Protection) -> dict[str, str]:
    """Return the annotations of a pod without an id; empty if the pod has no controller, and so no successor."""
    if (owner := find_controller_reference(pod)) is None:
        return {}
    room = len(f"-{protection.role}") if protection.role else 0
    identifier = derived_id(owner["name"], _template_uid(pod, owner), room=room)
    annotations = {names.ID: identifier, names.DERIVED_ID: "true"}
    if protection.policy:
        annotations[names.POLICY] = protection.policy
    return annotations | _policy_annotation(protection)


def _template_uid(pod: Object, owner: dict[str, Any]) -> str:
    """Return the controller's uid; a digest of it and the revision if its pods have successive templates.

    A pod of another template begins anew, as the pods of a Deployment's next ReplicaSet do.
    """
    uid, revision = str(owner["uid"]), (pod["metadata"].get("labels") or {}).get(REVISION)
    return hashlib.sha256(f"{uid}/{revision}".encode()).hexdigest() if revision else uid


def _build_patch(pod: Object, annotations: dict[str, str]) -> tuple[Object, ...]:
    """Return the patch that sets the pod's annotations."""
    return tuple(patch_operations(pod, {**pod, "metadata": {**pod["metadata"], "annotations": annotations}}))


def _annotations_of(pod: Object) -> dict[str, str]:
    return pod["metadata"].get("annotations") or {}
