"""Admission as on any cluster: webhooks behind Services, Pod Security, and an audit log that knows who wrote what."""

from __future__ import annotations

import base64
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio
from kubernetes_asyncio.client import ApiException

from tests.cluster.api.client import Object
from tests.cluster.control_plane.certificates import Authority
from tests.cluster.fixtures.audit import Audit
from tests.cluster.fixtures.namespace import Namespace, container, job, pod

_SERVER = Path(__file__).parent / "handlers" / "admission_server.py"


@pytest_asyncio.fixture(loop_scope="session")
async def webhook(namespace: Namespace, toolbox: str, tmp_path: Path) -> AsyncIterator[None]:
    """A mutating webhook for the pods of this namespace that ask for it, in a pod behind a Service."""
    authority = Authority(tmp_path, "webhook-ca")
    served = authority.issue("webhook", user="webhook", names=[f"webhook.{namespace.name}.svc"])
    files = {
        "tls.crt": served.certificate.read_text(),
        "tls.key": served.key.read_text(),
        "server.py": _SERVER.read_text(),
    }
    secret = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "webhook"}, "stringData": files}
    main = container(
        toolbox,
        *("python3", "/tls/server.py"),
        readinessProbe={"httpGet": {"scheme": "HTTPS", "port": 8443}, "periodSeconds": 1},
        volumeMounts=[{"name": "tls", "mountPath": "/tls"}],
    )
    volumes = [{"name": "tls", "secret": {"secretName": "webhook"}}]
    service = {"selector": {"app": "webhook"}, "ports": [{"port": 443, "targetPort": 8443}]}
    await namespace.apply(
        secret,
        pod("webhook", main, labels={"app": "webhook"}, volumes=volumes),
        {"apiVersion": "v1", "kind": "Service", "metadata": {"name": "webhook"}, "spec": service},
    )
    await namespace.ready("webhook")
    await namespace.api.create(_configuration(namespace.name, authority))
    yield
    await namespace.api.delete("admissionregistration.k8s.io/v1", "MutatingWebhookConfiguration", namespace.name)


def _configuration(namespace: str, authority: Authority) -> Object:
    return {
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": "MutatingWebhookConfiguration",
        "metadata": {"name": namespace},
        "webhooks": [
            {
                "name": "pods.webhook.test",
                "admissionReviewVersions": ["v1"],
                "sideEffects": "None",
                "failurePolicy": "Fail",
                "clientConfig": {
                    "service": {"namespace": namespace, "name": "webhook"},
                    "caBundle": base64.b64encode(authority.pair.certificate.read_bytes()).decode(),
                },
                "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": namespace}},
                "rules": [{"apiGroups": [""], "apiVersions": ["v1"], "resources": ["pods"], "operations": ["CREATE"]}],
            }
        ],
    }


@pytest.mark.usefixtures("webhook")
async def test_mutating_webhook_behind_a_service_is_called(namespace: Namespace, toolbox: str) -> None:
    [created] = await namespace.apply(pod("asked-about", container(toolbox, "true"), labels={"app": "any"}))

    assert created["metadata"]["labels"] == {"app": "any", "seen-by": "webhook"}


async def test_pod_security_is_enforced(namespace: Namespace, toolbox: str) -> None:
    labels = {"metadata": {"labels": {"pod-security.kubernetes.io/enforce": "restricted"}}}
    await namespace.api.patch("v1", "Namespace", namespace.name, labels)

    with pytest.raises(ApiException) as refusal:
        await namespace.apply(pod("privileged", container(toolbox, "true", securityContext={"privileged": True})))

    assert refusal.value.status == 403
    assert b"violates PodSecurity" in (refusal.value.body or b"")


async def test_audit_log_tells_who_wrote_what(namespace: Namespace, toolbox: str, audit: Audit) -> None:
    await namespace.apply(job("short", container(toolbox, "true")))

    writes = await audit.wait_for(
        lambda writes: any(write.resource == "jobs/status" and write.name == "short" for write in writes)
    )

    ours = [write for write in writes if write.namespace == namespace.name and write.name.startswith("short")]
    first = min(ours, key=lambda write: write.received)  # the log has them in the order of their answers
    assert (first.user, first.verb, first.resource) == ("kubernetes-admin", "patch", "jobs")
    [creation] = audit.writes(verb="create", resource="pods", namespace=namespace.name)
    assert creation.user == "system:serviceaccount:kube-system:job-controller"
    assert creation.body["metadata"]["labels"]["job"] == "short"
    assert first.received < creation.received
