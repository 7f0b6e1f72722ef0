"""Protected pods, as the webhook has marked them, in the model's words."""

from __future__ import annotations

from cedana_sched.kube.objects import Pod
from cedana_sched.model.identity import Identity
from cedana_sched.model.objects import names
from cedana_sched.model.preemption import WorkloadRef


def workload_of(pod: Pod) -> WorkloadRef:
    """A pod as the coordinator's records name it."""
    return WorkloadRef(pod.metadata.uid, pod.metadata.namespace, pod.metadata.name, pod.spec.node_name)


def identity_of(pod: Pod) -> Identity:
    """Who a protected pod is, by what the webhook wrote on it.

    Raises:
        KeyError: it is not protected.
        UsageError: somebody else wrote on it.
    """
    annotations = pod.metadata.annotations
    return Identity(pod.metadata.namespace, annotations[names.ID], int(annotations.get(names.INDEX, "0")))
