"""How each component of the control plane is started."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from tests.cluster.kind_config.shape import ClusterShape
from tests.cluster.machine.services import LOGS, Service
from tests.cluster.place import Place

PKI = "/etc/kubernetes/pki"
CONFIGURATION = "/etc/kubernetes"
AUDIT_LOG = "audit.log"
API_SERVER_PORT = 6443
_BIN = "/usr/local/bin"

AUDIT_POLICY: Mapping[str, Any] = {
    "apiVersion": "audit.k8s.io/v1",
    "kind": "Policy",
    "omitStages": ["RequestReceived"],
    "omitManagedFields": True,
    "rules": [
        {"level": "None", "verbs": ["get", "list", "watch"]},
        # a node's heartbeat, what is said of things, and questions that are asked by POST, change nothing
        {"level": "None", "resources": [{"group": "coordination.k8s.io"}], "namespaces": ["kube-node-lease"]},
        {"level": "None", "resources": [{"group": "", "resources": ["events"]}, {"group": "events.k8s.io"}]},
        {"level": "None", "resources": [{"group": "authentication.k8s.io"}, {"group": "authorization.k8s.io"}]},
        {"level": "Metadata", "resources": [{"group": "", "resources": ["secrets"]}]},
        {"level": "Request"},
    ],
}
"""Every write with its body, but Events, and what Secrets hold: tests prove by it who did what when."""


def api_server_port(shape: ClusterShape) -> int:
    """Where the API server listens, in the cluster's own namespace."""
    return shape.api_server_port or API_SERVER_PORT


def files() -> dict[str, str]:
    """Configuration files of the control plane's machine, by path."""
    return {
        f"{CONFIGURATION}/audit-policy.yaml": json.dumps(AUDIT_POLICY),
        f"{CONFIGURATION}/scheduler.yaml": json.dumps(
            {
                "apiVersion": "kubescheduler.config.k8s.io/v1",
                "kind": "KubeSchedulerConfiguration",
                "clientConnection": {
                    "kubeconfig": f"{CONFIGURATION}/scheduler.kubeconfig",
                    "qps": 1000,  # thousands of pods on kwok nodes
                    "burst": 1000,
                },
                "leaderElection": {"leaderElect": False},
            }
        ),
    }


def services(place: Place, shape: ClusterShape) -> list[Service]:
    """Etcd and the API server start at once, the others when the API server is ready."""
    return [
        Service("etcd", [f"{_BIN}/etcd", *_flags(_etcd())]),
        Service(
            "kube-apiserver",
            [f"{_BIN}/kube-apiserver", *_flags(_api_server(place, shape))],
            {"GOGC": "300"},  # memory for time: with thousands of pods a sixth of its time went into collecting
        ),
        Service(
            "kube-controller-manager",
            [f"{_BIN}/kube-controller-manager", *_flags(_controller_manager(shape))],
            starts_with_machine=False,
        ),
        Service("kube-scheduler", [f"{_BIN}/kube-scheduler", *_flags(_scheduler(shape))], starts_with_machine=False),
    ]


def _flags(arguments: Mapping[str, str]) -> list[str]:
    return [f"--{name}={value}" for name, value in arguments.items()]


def _feature_gates(shape: ClusterShape) -> dict[str, str]:
    gates = ",".join(f"{name}={str(on).lower()}" for name, on in shape.feature_gates.items())
    return {"feature-gates": gates} if gates else {}


def _etcd() -> dict[str, str]:
    return {
        "data-dir": "/var/lib/etcd",
        "listen-client-urls": "http://127.0.0.1:2379",
        "advertise-client-urls": "http://127.0.0.1:2379",
        "listen-peer-urls": "http://127.0.0.1:2380",
        "unsafe-no-fsync": "true",  # a test cluster does not outlive the machine
    }


def _api_server(place: Place, shape: ClusterShape) -> dict[str, str]:
    runtime_config = ",".join(f"{name}={value}" for name, value in shape.runtime_config.items())
    return {
        "etcd-servers": "http://127.0.0.1:2379",
        "bind-address": "0.0.0.0",  # noqa: S104 - of a namespace that nobody else is in
        "advertise-address": str(place.address),
        "secure-port": str(api_server_port(shape)),
        "tls-cert-file": f"{PKI}/apiserver.crt",
        "tls-private-key-file": f"{PKI}/apiserver.key",
        "client-ca-file": f"{PKI}/ca.crt",
        "kubelet-client-certificate": f"{PKI}/apiserver-kubelet-client.crt",
        "kubelet-client-key": f"{PKI}/apiserver-kubelet-client.key",
        "kubelet-preferred-address-types": "InternalIP",  # node names have no DNS
        "proxy-client-cert-file": f"{PKI}/front-proxy-client.crt",
        "proxy-client-key-file": f"{PKI}/front-proxy-client.key",
        "requestheader-client-ca-file": f"{PKI}/front-proxy-ca.crt",
        "requestheader-allowed-names": "front-proxy-client",
        "requestheader-extra-headers-prefix": "X-Remote-Extra-",
        "requestheader-group-headers": "X-Remote-Group",
        "requestheader-username-headers": "X-Remote-User",
        "service-account-issuer": "https://kubernetes.default.svc.cluster.local",
        "service-account-key-file": f"{PKI}/service-accounts.pub",
        "service-account-signing-key-file": f"{PKI}/service-accounts.key",
        "service-cluster-ip-range": str(shape.service_subnet),
        "authorization-mode": "Node,RBAC",
        "enable-admission-plugins": "NodeRestriction",
        "allow-privileged": "true",
        "enable-aggregator-routing": "true",
        "audit-policy-file": f"{CONFIGURATION}/audit-policy.yaml",
        "audit-log-path": f"{LOGS}/{AUDIT_LOG}",
        "audit-log-maxsize": "100000",  # MB: whoever reads it must not miss that it begins anew
        "delete-collection-workers": "10",  # a namespace of thousands of pods ends in seconds
        "max-requests-inflight": "1000",
        "max-mutating-requests-inflight": "500",
        **({"runtime-config": runtime_config} if runtime_config else {}),
        **_feature_gates(shape),
        **shape.api_server_arguments,
    }


def _controller_manager(shape: ClusterShape) -> dict[str, str]:
    return {
        "kubeconfig": f"{CONFIGURATION}/controller-manager.kubeconfig",
        "leader-elect": "false",
        "use-service-account-credentials": "true",
        "service-account-private-key-file": f"{PKI}/service-accounts.key",
        "root-ca-file": f"{PKI}/ca.crt",
        "cluster-signing-cert-file": f"{PKI}/ca.crt",
        "cluster-signing-key-file": f"{PKI}/ca.key",
        "cluster-cidr": str(shape.pod_subnet),
        "service-cluster-ip-range": str(shape.service_subnet),
        "allocate-node-cidrs": "false",  # each node's range is fixed when its machine is made
        "kube-api-qps": "500",
        "kube-api-burst": "1000",
        "concurrent-job-syncs": "10",
        # a lost node is noticed in seconds; kubelets here renew their leases every 2 s
        "node-monitor-period": "1s",
        "node-monitor-grace-period": "8s",
        **_feature_gates(shape),
        **shape.controller_manager_arguments,
    }


def _scheduler(shape: ClusterShape) -> dict[str, str]:
    return {
        "config": f"{CONFIGURATION}/scheduler.yaml",
        **_feature_gates(shape),
        **shape.scheduler_arguments,
    }
