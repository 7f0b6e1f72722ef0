"""The files that a node's containerd, CNI plugins, kubelet and kube-proxy read."""

from __future__ import annotations

import copy
import json
from collections.abc import Mapping
from ipaddress import IPv4Network
from typing import Any

import tomli_w

from tests.cluster.images.sandbox import SANDBOX_IMAGE
from tests.cluster.kind_config.merge_patch import merge
from tests.cluster.kind_config.shape import ClusterShape, NodeShape

CONTAINERD_DROP_INS = "/etc/containerd/conf.d"
CONTAINERD_SOCKET = "/run/containerd/containerd.sock"
CRI_PLUGIN = "io.containerd.grpc.v1.cri"
KUBERNETES = "/etc/kubernetes"


def containerd(shape: ClusterShape) -> dict[str, Any]:
    """Containerd 1.7's configuration, with the patches of the cluster's shape merged in."""
    document: dict[str, Any] = {
        "version": 2,
        "imports": [f"{CONTAINERD_DROP_INS}/*.toml"],
        "plugins": {
            CRI_PLUGIN: {
                "disable_apparmor": True,
                "restrict_oom_score_adj": True,  # the machine may lack CAP_SYS_RESOURCE
                "sandbox_image": SANDBOX_IMAGE,
                "containerd": {
                    "default_runtime_name": "runc",
                    "runtimes": {"runc": {"runtime_type": "io.containerd.runc.v2"}},
                },
            },
        },
    }
    for patch in shape.containerd_patches:
        document = merge(document, patch)
    return document


def containerd_handler(base: Mapping[str, Any], name: str, program: str) -> str:
    """A drop-in that adds a runtime handler, as TOML.

    containerd 1.7 takes a plugin's table whole from the last file that has it, so the drop-in repeats the base's.
    """
    plugin = copy.deepcopy(base["plugins"][CRI_PLUGIN])
    plugin["containerd"]["runtimes"][name] = {
        "runtime_type": "io.containerd.runc.v2",
        "options": {"BinaryName": program},
    }
    return tomli_w.dumps({"version": 2, "plugins": {CRI_PLUGIN: plugin}})


def kubelet(shape: ClusterShape, node: NodeShape) -> dict[str, Any]:
    """A KubeletConfiguration, with the patches of the shape merged in."""
    document: dict[str, Any] = {
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "failCgroupV1": False,
        "cgroupDriver": "cgroupfs",
        "enforceNodeAllocatable": [],
        "authentication": {
            "anonymous": {"enabled": False},
            "x509": {"clientCAFile": f"{KUBERNETES}/ca.crt"},
            "webhook": {"enabled": True},
        },
        "authorization": {"mode": "Webhook"},
        "containerRuntimeEndpoint": f"unix://{CONTAINERD_SOCKET}",
        "clusterDNS": [str(shape.service_subnet[10])],
        "clusterDomain": "cluster.local",
        "resolvConf": "/etc/resolv.conf",
        # the host's disk is shared: only a disk that is really full counts
        "evictionHard": {"memory.available": "50Mi", "nodefs.available": "1%", "imagefs.available": "1%"},
        "imageGCHighThresholdPercent": 100,
        "imageGCLowThresholdPercent": 99,
        "localStorageCapacityIsolation": False,
        # a heartbeat every quarter of it: a lost node is noticed in seconds
        "nodeLeaseDurationSeconds": 8,
        "nodeStatusUpdateFrequency": "4s",
        "cpuCFSQuota": True,
        "maxPods": 110,
        "serializeImagePulls": False,
        "shutdownGracePeriod": "0s",
    }
    if shape.feature_gates:
        document["featureGates"] = dict(shape.feature_gates)
    merged: dict[str, Any] = merge(document, node.kubelet_configuration)
    return merged


def kube_proxy(shape: ClusterShape, node: str) -> dict[str, Any]:
    """A KubeProxyConfiguration, with the patches of the shape merged in."""
    document: dict[str, Any] = {
        "apiVersion": "kubeproxy.config.k8s.io/v1alpha1",
        "kind": "KubeProxyConfiguration",
        "mode": "nftables",
        "clientConnection": {"kubeconfig": f"{KUBERNETES}/kube-proxy.kubeconfig"},
        "clusterCIDR": str(shape.pod_subnet),
        "hostnameOverride": node,
        # the sysctl of connection tracking belongs to the host
        "conntrack": {"maxPerCore": 0, "tcpEstablishedTimeout": "0s", "tcpCloseWaitTimeout": "0s"},
    }
    if shape.feature_gates:
        document["featureGates"] = dict(shape.feature_gates)
    merged: dict[str, Any] = merge(document, shape.kube_proxy_configuration)
    return merged


def cni(pods: IPv4Network, mtu: int = 1500) -> str:
    """One point-to-point link for each pod, with an address of the node's range."""
    return json.dumps(
        {
            "cniVersion": "1.0.0",
            "name": "pods",
            "plugins": [
                {
                    "type": "ptp",
                    "ipMasq": False,
                    "mtu": mtu,
                    "ipam": {
                        "type": "host-local",
                        "dataDir": "/run/cni-ipam",  # as fresh as the pods after a power cut
                        "ranges": [[{"subnet": str(pods)}]],
                        "routes": [{"dst": "0.0.0.0/0"}],
                    },
                },
                {"type": "portmap", "capabilities": {"portMappings": True}},
            ],
        }
    )
