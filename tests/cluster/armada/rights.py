"""What an executor needs in its cluster: priority classes, a ServiceAccount with the rights of its chart, a token."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import yaml

from tests.cluster.api.client import Api, Object
from tests.cluster.binaries.build import Binaries
from tests.cluster.cluster import Cluster

NAMESPACE = "armada"
NAME = "armada-executor"
USER = f"system:serviceaccount:{NAMESPACE}:{NAME}"
"""Who creates and deletes the pods of jobs."""
PRIORITY_CLASSES = "_local/kind/priorityclasses.yaml"
CLUSTER_ROLE = "deployment/executor/templates/clusterrole.yaml"
_TOKEN_SECONDS = 24 * 3600


async def grant(api: Api, binaries: Binaries) -> None:
    """Lay all of it into a cluster; what is there already is left as it is."""
    for body in objects(binaries.files("armada", PRIORITY_CLASSES), binaries.files("armada", CLUSTER_ROLE)):
        await api.apply(body)


async def write_kubeconfig(cluster: Cluster, api: Api, target: Path) -> None:
    """Write a kubeconfig of the ServiceAccount, for a program in the cluster's own network namespace."""
    request = {
        "apiVersion": "authentication.k8s.io/v1",
        "kind": "TokenRequest",
        "spec": {"expirationSeconds": _TOKEN_SECONDS},
    }
    answer = await api.call("POST", f"/api/v1/namespaces/{NAMESPACE}/serviceaccounts/{NAME}/token", body=request)
    authority = cluster.control_plane.authority().pair.certificate.read_bytes()
    document = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [
            {
                "name": "cluster",
                "cluster": {
                    "server": cluster.control_plane.url,
                    "certificate-authority-data": base64.b64encode(authority).decode(),
                },
            }
        ],
        "users": [{"name": "user", "user": {"token": answer["status"]["token"]}}],
        "contexts": [{"name": "context", "context": {"cluster": "cluster", "user": "user"}}],
        "current-context": "context",
    }
    target.parent.mkdir(parents=True, exist_ok=True)
    target.touch(mode=0o600)
    target.write_text(json.dumps(document, indent=1))


def objects(priority_classes: Path, cluster_role: Path) -> list[Object]:
    subject = {"kind": "ServiceAccount", "name": NAME, "namespace": NAMESPACE}
    role = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": NAME}
    return [
        *yaml.safe_load_all(priority_classes.read_text()),
        _named("v1", "Namespace", {"name": NAMESPACE}),
        _named("v1", "ServiceAccount", {"name": NAME, "namespace": NAMESPACE}),
        _named("rbac.authorization.k8s.io/v1", "ClusterRole", {"name": NAME}, rules=_rules(cluster_role)),
        _named(
            "rbac.authorization.k8s.io/v1", "ClusterRoleBinding", {"name": NAME}, roleRef=role, subjects=[subject]
        ),
    ]  # fmt: skip


def _named(api_version: str, kind: str, metadata: dict[str, str], **fields: Any) -> Object:
    return {"apiVersion": api_version, "kind": kind, "metadata": metadata, **fields}


def _rules(template: Path) -> list[Object]:
    """The rules of the chart's ClusterRole; only names and labels above them are Helm's to fill in."""
    _, _, rules = template.read_text().partition("\nrules:\n")
    found: list[Object] = yaml.safe_load(rules)
    return found
