"""What Armada's server makes of a submission, turned back into a submission that it makes the same of."""

from __future__ import annotations

from armada_client.armada.submit_pb2 import Headless, Job, NodePort
from armada_client.k8s.io.api.core.v1 import generated_pb2 as core
from armada_client.k8s.io.api.networking.v1 import generated_pb2 as networking
from armada_client.k8s.io.apimachinery.pkg.apis.meta.v1 import generated_pb2 as meta

from cedana_sched.model.objects import names
from cedana_sched_armada.job_of_pod import FIRST, Gang
from cedana_sched_armada.successor import (
    build_successor_submission,
    checkpoint_id_of,
    client_id,
    next_gang,
    predecessor_by_client_id,
)

_JOB = "01kabc0000000000000000000a"
_ANNOTATIONS = {"team": "bio", "armada_jobset_id": "md", "armada_owner": "anna"}


def _service(number: int, port: int, kind: str = "ClusterIP", address: str = "None", name: str = "") -> core.Service:
    return core.Service(
        metadata=meta.ObjectMeta(name=name or f"armada-{_JOB}-0-service-{number}"),
        spec=core.ServiceSpec(type=kind, clusterIP=address, ports=[core.ServicePort(port=port)]),
    )


def _ingress(service: core.Service, port: int, certificate: str = "") -> networking.Ingress:
    backend = networking.IngressServiceBackend(
        name=service.metadata.name, port=networking.ServiceBackendPort(number=port)
    )
    path = networking.HTTPIngressPath(path="/", backend=networking.IngressBackend(service=backend))
    rule = networking.IngressRule(
        ingressRuleValue=networking.IngressRuleValue(http=networking.HTTPIngressRuleValue(paths=[path]))
    )
    tls = [networking.IngressTLS(secretName=certificate)] if certificate else []
    return networking.Ingress(
        metadata=meta.ObjectMeta(annotations=_ANNOTATIONS), spec=networking.IngressSpec(rules=[rule], tls=tls)
    )


def test_ingresses_and_services_are_asked_for_again() -> None:
    headless = _service(0, 80)
    of_ingress = _service(1, 81, address="")
    node_port = _service(2, 82, kind="NodePort", address="")
    named = _service(3, 83, name="results")
    job = Job(
        id=_JOB,
        namespace="research",
        k8s_service=[headless, of_ingress, node_port, named],
        k8s_ingress=[_ingress(of_ingress, 81, "research-"), _ingress(node_port, 82, "own")],
    )

    item = build_successor_submission(job, _JOB, 1, None)

    assert [(one.type, list(one.ports), one.name) for one in item.services] == [
        (Headless, [80], ""),
        (NodePort, [82], ""),
        (Headless, [83], "results"),
    ]
    first, second = item.ingress
    assert (list(first.ports), first.use_clusterIP, first.tls_enabled, first.cert_name) == ([81], True, True, "")
    assert (list(second.ports), second.tls_enabled, second.cert_name) == ([82], True, "own")
    assert dict(first.annotations) == {"team": "bio"}


def test_default_tolerations_do_not_pile_up() -> None:
    tolerations = [core.Toleration(key=key, operator="Exists") for key in ("a", "b", "a", "a")]
    job = Job(id=_JOB, pod_spec=core.PodSpec(tolerations=tolerations))
    assert [one.key for one in build_successor_submission(job, _JOB, 1, None).pod_spec.tolerations] == ["a", "b"]
    assert len(job.pod_spec.tolerations) == 4, "what Armada said is left as it is"


def test_several_pod_specs_stay_where_they_were() -> None:
    job = Job(id=_JOB, pod_specs=[core.PodSpec(priorityClassName="armada-preemptible")])
    item = build_successor_submission(job, _JOB, 1, None)
    assert not item.HasField("pod_spec")
    assert item.pod_specs[0].priorityClassName == "armada-preemptible"


def test_who_a_job_is() -> None:
    variable = core.Container(env=[core.EnvVar(name="CEDANA_CHECKPOINT", value="by-variable")])
    annotations = {names.ID: "by-annotation", FIRST: "01first"}
    assert (
        checkpoint_id_of(Job(id=_JOB, pod_spec=core.PodSpec(containers=[variable]), annotations=annotations))
        == "by-variable"
    )
    assert checkpoint_id_of(Job(id=_JOB, annotations=annotations)) == "by-annotation"
    assert checkpoint_id_of(Job(id=_JOB, annotations={FIRST: "01first"})) == "01first"
    assert checkpoint_id_of(Job(id=_JOB)) == _JOB


def test_new_names_follow_from_old_ones() -> None:
    assert predecessor_by_client_id(client_id(_JOB)) == _JOB
    assert predecessor_by_client_id("md-run-7") is None
    assert len(client_id(_JOB)) <= 100
    again = [next_gang(Gang("bio", "gang"), _JOB, 2) for _ in range(2)]
    assert again[0] == again[1] != next_gang(Gang("bio", again[0].id), _JOB, 2)
    assert len(again[0].id) <= 63, "it is a label's value as well"
