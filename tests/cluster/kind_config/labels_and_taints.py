"""Labels and taints of nodes, as fields and in the kubelet's arguments `node-labels` and `register-with-taints`."""

from __future__ import annotations

import re
from typing import get_args

from tests.cluster.kind_config.capacity import capacity_of
from tests.cluster.kind_config.refusal import refused
from tests.cluster.kind_config.shape import Taint, TaintEffect

CONTROL_PLANE_LABELS = {"node-role.kubernetes.io/control-plane": ""}
CONTROL_PLANE_LABELS_BESIDE_WORKERS = {"node.kubernetes.io/exclude-from-external-load-balancers": ""}
CONTROL_PLANE_TAINT = Taint("node-role.kubernetes.io/control-plane", "", "NoSchedule")

_SUBDOMAIN = r"[a-z0-9]([a-z0-9-]*[a-z0-9])?(\.[a-z0-9]([a-z0-9-]*[a-z0-9])?)*"
_NAME = r"[A-Za-z0-9]([A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?"
_KEY = re.compile(rf"((?=[^/]{{1,253}}/){_SUBDOMAIN}/)?{_NAME}")
_VALUE = re.compile(f"({_NAME})?")

# k8s.io/kubelet/pkg/apis/well_known_labels.go: a kubelet that is told to set others of Kubernetes' own does not start
_RESERVED = re.compile(r"([^/]+\.)?(kubernetes|k8s)\.io/.*")
_SETTABLE = re.compile(
    r"([^/]+\.)?(kubelet|node)\.kubernetes\.io/.*"
    r"|kubernetes\.io/(os|arch|hostname)|beta\.kubernetes\.io/(os|arch|instance-type)"
    r"|topology\.kubernetes\.io/(zone|region)|failure-domain\.beta\.kubernetes\.io/(zone|region)"
)


def checked_labels(labels: dict[str, str]) -> dict[str, str]:
    """The labels, when a kubelet can set them and those for capacity can be read.

    Raises:
        PydanticCustomError: one of them is no label.
    """
    for key, value in labels.items():
        if not _KEY.fullmatch(key):
            raise refused("belongs to what is no label's key", "write [DOMAIN/]NAME", field=key, value=value)
        if not _VALUE.fullmatch(value):
            remedy = "write at most 63 letters, digits, '-', '_' and '.', a letter or digit first and last"
            raise refused("is no label's value", remedy, field=key, value=value)
        if _RESERVED.fullmatch(key) and not _SETTABLE.fullmatch(key):
            remedy = "use a domain of your own, or set it with kubectl when the cluster is up"
            raise refused("belongs to a label that a kubelet may not set", remedy, field=key, value=value)
    capacity_of(labels)
    return labels


def parse_labels(text: str) -> dict[str, str]:
    """The kubelet's `node-labels`: `tier=backend,zone=a`.

    Raises:
        PydanticCustomError: it does not read so.
    """
    labels = {}
    for item in filter(None, text.split(",")):
        key, equals, value = item.partition("=")
        if not equals:
            raise refused("is no label", "write KEY=VALUE,…", field="node-labels", value=item)
        labels[key.strip()] = value.strip()
    return checked_labels(labels)


def parse_taints(text: str) -> tuple[Taint, ...]:
    """The kubelet's `register-with-taints`: `dedicated=gpu:NoSchedule,draining:NoExecute`.

    Raises:
        PydanticCustomError: it does not read so.
    """
    taints = []
    for item in filter(None, text.split(",")):
        rest, _, effect = item.rpartition(":")
        key, _, value = rest.partition("=")
        if not (_KEY.fullmatch(key) and _VALUE.fullmatch(value) and effect in get_args(TaintEffect)):
            remedy = f"write KEY=VALUE:EFFECT,… with an effect of {', '.join(get_args(TaintEffect))}"
            raise refused("is no taint", remedy, field="register-with-taints", value=item)
        taints.append(Taint(key, value, effect))  # type: ignore[arg-type]  # checked just now
    return tuple(taints)


def checked_key(key: str) -> str:
    """The key of a taint.

    Raises:
        PydanticCustomError: it is none.
    """
    if not _KEY.fullmatch(key):
        raise refused("is no taint's key", "write [DOMAIN/]NAME")
    return key


def checked_value(value: str) -> str:
    """The value of a taint.

    Raises:
        PydanticCustomError: it is none.
    """
    if not _VALUE.fullmatch(value):
        raise refused("is no taint's value", "write at most 63 letters, digits, '-', '_' and '.'")
    return value
