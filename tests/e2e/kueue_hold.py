"""Our webhook's hold of Kueue's evictions without it: an admission policy refuses to suspend what is not released."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

from cedana_sched.model.objects import names
from tests.cluster.api.admission import wait_until_refused
from tests.cluster.api.client import Object
from tests.cluster.fixtures.namespace import Namespace, container, job
from tests.e2e.product.queues import KUEUE

_API_VERSION = "admissionregistration.k8s.io/v1"
_MESSAGE = "held by the test"
_RELEASED = f"""
!(object.spec.suspend == true && oldObject.spec.suspend != true)
|| request.userInfo.username != '{KUEUE}'
|| '{names.RELEASED_HOLD}' in object.metadata.?annotations.orValue({{}})
"""


@asynccontextmanager
async def suspension_held(
    namespace: Namespace, *, labels: Mapping[str, str] | None = None, **selectors: Any
) -> AsyncIterator[None]:
    """Inside the block Kueue may suspend a Job that has the annotation of the release alone.

    Args:
        namespace: gives the policy its name, and has a Job on which it is tried.
        labels: of that Job.
        selectors: which Jobs, as in `matchConstraints` of the policy; those of that namespace among them.
    """
    bodies = policy(namespace.name, selectors)
    for body in bodies:
        await namespace.api.apply(body)
    try:
        await namespace.apply(job("probe", container("none"), labels=labels, fields={"parallelism": 0}))
        change = '--patch={"spec":{"suspend":true}}'
        suspends = ("patch", "job/probe", "--dry-run=server", f"--as={KUEUE}", change)
        await wait_until_refused(lambda: namespace.kubectl(*suspends), _MESSAGE)
        yield
    finally:
        for body in reversed(bodies):
            await namespace.api.delete(body["apiVersion"], body["kind"], body["metadata"]["name"])


def policy(name: str, selectors: Mapping[str, Any]) -> tuple[Object, Object]:
    """The policy, and what puts it in force."""
    rule = {"apiGroups": ["batch"], "apiVersions": ["v1"], "operations": ["UPDATE"], "resources": ["jobs"]}
    constraints = {"resourceRules": [rule], **selectors}
    spec = {"matchConstraints": constraints, "validations": [{"expression": _RELEASED, "message": _MESSAGE}]}
    binding = {"policyName": name, "validationActions": ["Deny"]}
    return _named("ValidatingAdmissionPolicy", name, spec), _named("ValidatingAdmissionPolicyBinding", name, binding)


def _named(kind: str, name: str, spec: Object) -> Object:
    return {"apiVersion": _API_VERSION, "kind": kind, "metadata": {"name": name}, "spec": spec}
