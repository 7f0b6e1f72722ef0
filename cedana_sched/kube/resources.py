"""API resources that we read and write, with their URLs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final
from urllib.parse import quote

from cedana_sched.kube.errors import AbsentError
from cedana_sched.model.objects.names import API_VERSION


@dataclass(frozen=True)
class Resource:
    """One kind: `group_version` as in `apiVersion`, `plural` as in a URL."""

    group_version: str
    kind: str
    plural: str
    namespaced: bool = True

    def path(self, namespace: str | None = None, name: str | None = None, subresource: str | None = None) -> str:
        """Return the URL path of the collection or of one object; no name can escape that path.

        Raises:
            ValueError: a namespace is given for a cluster-scoped kind, or a name without the namespace it needs.
            AbsentError: no object can have that name.
        """
        if namespace and not self.namespaced:
            raise ValueError(f"{self.kind} has no namespaces")
        if name and self.namespaced and not namespace:
            raise ValueError(f"{self.kind} {name} needs a namespace")
        base = "/apis/" if "/" in self.group_version else "/api/"
        parts = ["namespaces", namespace] if namespace else []
        parts += [part for part in (self.plural, name, subresource) if part]
        return "/".join((f"{base}{self.group_version}", *map(_quote_segment, parts)))

    def reference(self, name: str, namespace: str | None = None, uid: str = "") -> dict[str, str]:
        """Return an ObjectReference, as in Events."""
        reference = {"apiVersion": self.group_version, "kind": self.kind, "name": name}
        return reference | {key: value for key, value in {"namespace": namespace, "uid": uid}.items() if value}


def _quote_segment(word: str) -> str:
    """Quote a path segment; an owner reference's name, for one, is arbitrary text."""
    if word in {".", ".."}:  # HTTP clients resolve both, quoted or not
        raise AbsentError(f"no object is called {word!r}", status=404, reason="NotFound")
    return quote(word, safe=":")


PODS = Resource("v1", "Pod", "pods")
UNFINISHED_PODS = "status.phase!=Succeeded,status.phase!=Failed"
"""Field selector of pods whose phase is not terminal."""
NODES = Resource("v1", "Node", "nodes", namespaced=False)
NAMESPACES = Resource("v1", "Namespace", "namespaces", namespaced=False)
CONFIG_MAPS = Resource("v1", "ConfigMap", "configmaps")
SECRETS = Resource("v1", "Secret", "secrets")
SERVICES = Resource("v1", "Service", "services")
EVENTS = Resource("v1", "Event", "events")
LEASES = Resource("coordination.k8s.io/v1", "Lease", "leases")
DEPLOYMENTS = Resource("apps/v1", "Deployment", "deployments")
JOBS = Resource("batch/v1", "Job", "jobs")
MUTATING_WEBHOOKS = Resource(
    "admissionregistration.k8s.io/v1",
    "MutatingWebhookConfiguration",
    "mutatingwebhookconfigurations",
    namespaced=False,
)
VALIDATING_WEBHOOKS = Resource(
    "admissionregistration.k8s.io/v1",
    "ValidatingWebhookConfiguration",
    "validatingwebhookconfigurations",
    namespaced=False,
)

CHECKPOINTS = Resource(API_VERSION, "Checkpoint", "checkpoints")
PREEMPTION_HOLDS = Resource(API_VERSION, "PreemptionHold", "preemptionholds")
RESTORES = Resource(API_VERSION, "Restore", "restores")
CHECKPOINT_POLICIES = Resource(API_VERSION, "CheckpointPolicy", "checkpointpolicies", namespaced=False)
CHECKPOINT_STORAGES = Resource(API_VERSION, "CheckpointStorage", "checkpointstorages", namespaced=False)

ESSENTIAL: Final = frozenset(one for one in tuple(globals().values()) if isinstance(one, Resource))
"""Kinds served by every cluster with our installation. An absent one is only late, as after a start of the API
server; any other kind may not be installed at all."""
