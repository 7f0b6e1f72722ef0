"""DNS for Services and pods. Part of every cluster.

There is no outside: the cluster has no way to the internet, so a name that is not the cluster's is answered at once
with "no such name". A forwarder to nowhere would let every such look-up wait for seconds.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tests.cluster.addons.deployments import wait_available
from tests.cluster.api.client import Object
from tests.cluster.binaries.build import Binaries
from tests.cluster.cluster import Cluster
from tests.cluster.images.archive import BinaryImage
from tests.cluster.steps import Steps
from tests.cluster.taints import STAYS

_NAMESPACE = "kube-system"
_NAME = "coredns"
_IMAGE = "localhost/test/coredns:dev"
_PORT = 1053  # one that a process without privileges may listen on
_LABELS = {"k8s-app": "kube-dns"}
_COREFILE = f"""\
cluster.local:{_PORT} in-addr.arpa:{_PORT} ip6.arpa:{_PORT} {{
    errors
    ready
    kubernetes {{
        pods insecure
        ttl 5
    }}
    loadbalance
}}
.:{_PORT} {{
    errors
    template ANY ANY {{
        rcode NXDOMAIN
    }}
}}
"""


@dataclass(frozen=True)
class CoreDns:
    """CoreDNS with one replica, at the tenth address of the Services, where kubelets tell pods to ask."""

    name: str = "coredns"
    tools: tuple[str, ...] = ("coredns",)

    def images(self, binaries: Binaries) -> Sequence[BinaryImage]:
        return [BinaryImage(_IMAGE, {"/coredns": binaries.program("coredns")}, ["/coredns"])]

    async def install(self, cluster: Cluster, binaries: Binaries, steps: Steps) -> None:
        with steps.step("CoreDNS Available"):
            async with cluster.api() as api:
                for body in objects(str(cluster.shape.service_subnet[10])):
                    await api.apply(body)
                await wait_available(cluster, api, _NAMESPACE, [_NAME])


def objects(address: str) -> list[Object]:
    """All that CoreDNS is made of.

    Args:
        address: of its Service.
    """
    return [
        _object("v1", "ServiceAccount"),
        _object(
            "rbac.authorization.k8s.io/v1",
            "ClusterRole",
            rules=[
                {"apiGroups": [""], "resources": ["services", "pods", "namespaces"], "verbs": ["list", "watch"]},
                {"apiGroups": ["discovery.k8s.io"], "resources": ["endpointslices"], "verbs": ["list", "watch"]},
            ],
        ),
        _object(
            "rbac.authorization.k8s.io/v1",
            "ClusterRoleBinding",
            roleRef={"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": _NAME},
            subjects=[{"kind": "ServiceAccount", "name": _NAME, "namespace": _NAMESPACE}],
        ),
        _object("v1", "ConfigMap", data={"Corefile": _COREFILE}),
        _object("apps/v1", "Deployment", spec=_deployment()),
        _object(
            "v1",
            "Service",
            "kube-dns",
            spec={
                "clusterIP": address,
                "selector": _LABELS,
                "ports": [
                    {"name": "dns", "port": 53, "protocol": "UDP", "targetPort": _PORT},
                    {"name": "dns-tcp", "port": 53, "protocol": "TCP", "targetPort": _PORT},
                ],
            },
        ),
    ]


def _object(api_version: str, kind: str, name: str = _NAME, **rest: Any) -> Object:
    cluster_wide = kind.startswith("Cluster")
    metadata = {"name": name} | ({} if cluster_wide else {"namespace": _NAMESPACE})
    return {"apiVersion": api_version, "kind": kind, "metadata": metadata, **rest}


def _deployment() -> dict[str, Any]:
    return {
        "replicas": 1,
        "selector": {"matchLabels": _LABELS},
        "template": {
            "metadata": {"labels": _LABELS},
            "spec": {
                "serviceAccountName": _NAME,
                "priorityClassName": "system-cluster-critical",
                "dnsPolicy": "Default",
                "tolerations": [
                    {"key": "node-role.kubernetes.io/control-plane", "operator": "Exists", "effect": "NoSchedule"},
                    {"key": "CriticalAddonsOnly", "operator": "Exists"},
                    *STAYS,
                ],
                "securityContext": {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}},
                "containers": [
                    {
                        "name": _NAME,
                        "image": _IMAGE,
                        "imagePullPolicy": "Never",
                        "args": ["-conf", "/etc/coredns/Corefile"],
                        "ports": [
                            {"name": "dns", "containerPort": _PORT, "protocol": "UDP"},
                            {"name": "dns-tcp", "containerPort": _PORT, "protocol": "TCP"},
                        ],
                        "readinessProbe": {"httpGet": {"path": "/ready", "port": 8181}, "periodSeconds": 1},
                        "resources": {"requests": {"cpu": "10m", "memory": "32Mi"}, "limits": {"memory": "170Mi"}},
                        "securityContext": {
                            "allowPrivilegeEscalation": False,
                            "capabilities": {"drop": ["ALL"]},
                            "readOnlyRootFilesystem": True,
                        },
                        "volumeMounts": [{"name": "config", "mountPath": "/etc/coredns", "readOnly": True}],
                    }
                ],
                "volumes": [{"name": "config", "configMap": {"name": _NAME}}],
            },
        },
    }
