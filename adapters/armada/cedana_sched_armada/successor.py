"""The job that replaces a preempted one: the stored submission, converted back to a submission request.

Armada stores submissions as processed by its server: with defaults filled in, `{JobId}` replaced, and ingresses and
services as Kubernetes objects (Armada's internal/server/submit/conversion). Each of these is reverted, so that a job is
the same after any number of resubmissions.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping

import msgspec
from armada_client.armada.submit_pb2 import (
    Headless,
    IngressConfig,
    Job,
    JobSubmitRequestItem,
    NodePort,
    ServiceConfig,
)
from armada_client.k8s.io.api.core.v1.generated_pb2 import PodSpec, Service
from armada_client.k8s.io.api.networking.v1.generated_pb2 import Ingress

from cedana_sched.model.identity import CHECKPOINT_VARIABLE
from cedana_sched.model.objects import names
from cedana_sched_armada.job_of_pod import (
    CARDINALITY,
    EXTERNAL_URI,
    FIRST,
    GANG,
    NUMBER,
    PREVIOUS,
    Gang,
    number_in_annotation,
)

CLIENT_ID_PREFIX = "cedana-sched:"
_JOB_ID = "{JobId}"
_NO_CLUSTER_IP = "None"


class NewGang(msgspec.Struct, frozen=True):
    """The gang as which a preempted one is resubmitted."""

    id: str
    cardinality: int


def client_id(job: str) -> str:
    """Return the client id for the successor of `job`; Armada accepts each once (at most 100 characters)."""
    return f"{CLIENT_ID_PREFIX}{job}"


def predecessor_by_client_id(client: str) -> str | None:
    """Return the predecessor of the job with this client id; None if the id is not ours."""
    return client.removeprefix(CLIENT_ID_PREFIX) if client.startswith(CLIENT_ID_PREFIX) else None


def next_gang(gang: Gang, job: str, cardinality: int) -> NewGang:
    """Return a new gang: gang ids are never reused. `job` is the member that identifies the preemption."""
    digest = hashlib.sha256(f"{gang.queue}/{gang.id}/{job}".encode()).hexdigest()[:20]
    return NewGang(f"cedana-sched-{digest}", cardinality)


def checkpoint_id_of(job: Job) -> str:
    """Return a job's id: the submitter's, else the first job id of its chain."""
    named = (
        one.value
        for spec in pod_specs(job)
        for container in spec.containers
        for one in container.env
        if one.name == CHECKPOINT_VARIABLE and one.value
    )
    return next(named, None) or job.annotations.get(names.ID) or first_job_in_chain(job)


def first_job_in_chain(job: Job) -> str:
    """Return the first job of the chain."""
    return job.annotations.get(FIRST) or job.id


def is_snapshot_expected(job: Job) -> bool:
    """Whether it restores a snapshot, possibly taken in another cluster."""
    return job.annotations.get(names.EXPECT_SNAPSHOT) == "true"


def resubmission_number_of(job: Job) -> int:
    """Return its number of consecutive resubmissions."""
    return number_in_annotation(job.annotations, NUMBER)


def build_successor_submission(
    job: Job, identifier: str | None, number: int, gang: NewGang | None
) -> JobSubmitRequestItem:
    """Build the submission that replaces a preempted job.

    Args:
        job: as stored by Armada.
        identifier: id of its snapshots; None if it is not protected.
        number: of this consecutive resubmission, from 1.
        gang: the new gang, if it is in one.
    """
    item = JobSubmitRequestItem(
        priority=job.priority,
        namespace=job.namespace,
        client_id=client_id(job.id),
        labels=_restore_job_id_placeholder(job.labels, job.id),
        annotations=_restore_job_id_placeholder(job.annotations, job.id),
        required_node_labels=dict(job.required_node_labels),
        ingress=_ingress_configs(job),
        services=_service_configs(job),
        scheduler=job.scheduler,
    )
    if job.pod_specs:
        item.pod_specs.extend(job.pod_specs)
    else:
        item.pod_spec.CopyFrom(job.pod_spec)
    for spec in (item.pod_spec, *item.pod_specs):
        _remove_duplicate_tolerations(spec)
    annotations = item.annotations
    annotations.pop(names.RESTORE_FROM, None)  # the newest snapshot continues the one requested then
    if identifier is not None:
        annotations[names.ID], annotations[names.EXPECT_SNAPSHOT] = identifier, "true"
    annotations[PREVIOUS], annotations[FIRST], annotations[NUMBER] = job.id, first_job_in_chain(job), str(number)
    if EXTERNAL_URI not in annotations:
        annotations[EXTERNAL_URI] = f"{CLIENT_ID_PREFIX}{first_job_in_chain(job)}"
    item.external_job_uri = annotations[EXTERNAL_URI]
    item.labels.pop(GANG, None)  # the server adds it again if configured
    if gang is not None:
        annotations[GANG], annotations[CARDINALITY] = gang.id, str(gang.cardinality)
    return item


def pod_specs(job: Job) -> Iterable[PodSpec]:
    return job.pod_specs or (job.pod_spec,)


def _restore_job_id_placeholder(values: Mapping[str, str], job: str) -> dict[str, str]:
    """Restore `{JobId}` where the server inserted the job's id, which its submitter cannot have known."""
    return {key: value.replace(job, _JOB_ID) for key, value in values.items()}


def _remove_duplicate_tolerations(spec: PodSpec) -> None:
    """Remove duplicates: the server appends its default tolerations at each submission."""
    seen: set[bytes] = set()
    kept = []
    for toleration in spec.tolerations:
        written = toleration.SerializeToString(deterministic=True)
        if written not in seen:
            seen.add(written)
            kept.append(toleration)
    if len(kept) < len(spec.tolerations):
        del spec.tolerations[:]
        spec.tolerations.extend(kept)


def _ingress_configs(job: Job) -> list[IngressConfig]:
    services = {service.metadata.name: service for service in job.k8s_service}
    configs = []
    for ingress in job.k8s_ingress:
        behind = [services[name] for name in _services_behind(ingress) if name in services]
        certificate = ingress.spec.tls[0].secretName if ingress.spec.tls else ""
        config = IngressConfig(
            ports=_backend_ports_of(ingress),
            annotations=dict(ingress.metadata.annotations),
            tls_enabled=bool(ingress.spec.tls),
            cert_name="" if certificate == f"{job.namespace}-" else certificate,
            use_clusterIP=any(service.spec.clusterIP != _NO_CLUSTER_IP for service in behind),
        )
        for written_by_server in ("armada_jobset_id", "armada_owner"):
            config.annotations.pop(written_by_server, None)
        configs.append(config)
    return configs


def _service_configs(job: Job) -> list[ServiceConfig]:
    """Return the requested services: a service that only one ingress needs is created with that ingress."""
    used = [name for ingress in job.k8s_ingress for name in _services_behind(ingress)]
    generated = f"armada-{job.id}-0-service-"
    configs = []
    for service in job.k8s_service:
        name = service.metadata.name
        if used.count(name) == 1 and service.spec.type != "NodePort" and name.startswith(generated):
            continue
        kind = NodePort if service.spec.type == "NodePort" else Headless
        own_name = "" if name.startswith(generated) else name
        configs.append(ServiceConfig(type=kind, ports=_open_ports(service), name=own_name))
    return configs


def _services_behind(ingress: Ingress) -> list[str]:
    paths = (path for rule in ingress.spec.rules for path in rule.ingressRuleValue.http.paths)
    return list(dict.fromkeys(path.backend.service.name for path in paths))


def _backend_ports_of(ingress: Ingress) -> list[int]:
    paths = (path for rule in ingress.spec.rules for path in rule.ingressRuleValue.http.paths)
    return list(dict.fromkeys(path.backend.service.port.number for path in paths))


def _open_ports(service: Service) -> list[int]:
    return [port.port for port in service.spec.ports]
