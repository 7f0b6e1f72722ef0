"""kind's `kind.x-k8s.io/v1alpha4` Cluster as people write it: kind's pkg/apis/config/v1alpha4/types.go, field by field.

What the test cluster cannot honour is a field here as well, so that it is refused with a reason and not as unknown.
"""

from __future__ import annotations

import re
from ipaddress import IPv4Network
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, model_validator
from pydantic.alias_generators import to_camel

from tests.cluster.kind_config.labels_and_taints import checked_labels
from tests.cluster.kind_config.refusal import refused
from tests.cluster.kind_config.shape import Role

_IMAGE = re.compile(r"kindest/node:v1\.36\.\d+(@sha256:[0-9a-f]{64})?")


def _only(*honoured: Any, remedy: str) -> AfterValidator:
    """Refuses every value but some."""

    def check(value: Any) -> Any:
        if value not in honoured:
            raise refused("is not honoured by the test cluster", remedy)
        return value

    return AfterValidator(check)


def _matching(pattern: re.Pattern[str], problem: str, remedy: str) -> AfterValidator:
    def check(value: str) -> str:
        if value and not pattern.fullmatch(value):
            raise refused(problem, remedy)
        return value

    return AfterValidator(check)


def _subnet(value: Any) -> Any:
    try:
        return IPv4Network(value, strict=False) if isinstance(value, str) else value
    except ValueError as error:
        raise refused("is no IPv4 subnet", "write one such as 10.244.0.0/16") from error


Subnet = Annotated[IPv4Network, BeforeValidator(_subnet)]
JSON6902 = Annotated[tuple[Any, ...], _only((), remedy="write a merge patch in the field beside it")]


class _Written(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", alias_generator=to_camel)

    @model_validator(mode="before")
    @classmethod
    def _null_is_absent(cls, written: Any) -> Any:
        return {key: value for key, value in written.items() if value is not None} if type(written) is dict else written


class Mount(_Written):
    """Of a node."""

    host_path: Annotated[str, Field(min_length=1)]
    container_path: Annotated[str, _matching(re.compile("/.*"), "is not absolute", "begin it with a slash")]
    read_only: bool = False
    selinux_relabel: Annotated[bool, _only(False, remedy="leave it out: the nodes run without SELinux")] = False
    propagation: Annotated[
        Literal["None", "HostToContainer", "Bidirectional"],
        _only(
            "None", remedy="leave it out: a node sees what is mounted when it boots, and this host none of its mounts"
        ),
    ] = "None"


class Node(_Written):
    """One of the cluster."""

    role: Role = "control-plane"
    image: Annotated[
        str,
        _matching(
            _IMAGE,
            "is no image of the Kubernetes that the test cluster runs",
            "leave it out, or name kindest/node:v1.36.x",
        ),
    ] = ""
    labels: Annotated[dict[str, str], AfterValidator(checked_labels)] = {}
    extra_mounts: tuple[Mount, ...] = ()
    extra_port_mappings: Annotated[
        tuple[Any, ...],
        _only((), remedy="remove them: this machine reaches nodes, pods and Services at their addresses"),
    ] = ()
    kubeadm_config_patches: tuple[str, ...] = ()
    kubeadm_config_patches_json6902: Annotated[JSON6902, Field(alias="kubeadmConfigPatchesJSON6902")] = ()


class Networking(_Written):
    """Of the whole cluster."""

    ip_family: Annotated[str, _only("ipv4", remedy="leave it out: the test cluster has IPv4 alone")] = "ipv4"
    api_server_port: Annotated[int, Field(ge=-1, le=65535)] = 0
    api_server_address: Annotated[
        str, _only("127.0.0.1", remedy="leave it out: the API server is reached from this machine alone")
    ] = "127.0.0.1"
    pod_subnet: Subnet = IPv4Network("10.244.0.0/16")
    service_subnet: Subnet = IPv4Network("10.96.0.0/16")
    disable_default_cni: Annotated[
        bool,
        Field(alias="disableDefaultCNI"),
        _only(False, remedy="leave it out: without the default network no node becomes ready"),
    ] = False
    kube_proxy_mode: Annotated[
        Literal["nftables", "iptables", "ipvs", "none"], _only("nftables", remedy="write nftables, or leave it out")
    ] = "nftables"
    dns_search: Annotated[
        tuple[str, ...], _only((), remedy="remove it: nodes look names up without search domains")
    ] = ()

    @model_validator(mode="after")
    def _subnets_are_apart(self) -> Self:
        if self.pod_subnet.overlaps(self.service_subnet):
            problem = f"overlaps serviceSubnet, which is {self.service_subnet}"
            raise refused(problem, "choose another", field="podSubnet", value=str(self.pod_subnet))
        return self


class Cluster(_Written):
    """The whole file."""

    kind: Literal["Cluster"]
    api_version: Literal["kind.x-k8s.io/v1alpha4"]
    name: Annotated[str, _matching(re.compile("[a-z0-9.-]+"), "is no name of a cluster", "use a-z, 0-9, '.', '-'")] = ""
    nodes: tuple[Node, ...] = ()
    networking: Networking = Networking()
    feature_gates: dict[str, bool] = {}
    runtime_config: dict[str, str] = {}
    kubeadm_config_patches: tuple[str, ...] = ()
    kubeadm_config_patches_json6902: Annotated[JSON6902, Field(alias="kubeadmConfigPatchesJSON6902")] = ()
    containerd_config_patches: tuple[str, ...] = ()
    containerd_config_patches_json6902: Annotated[JSON6902, Field(alias="containerdConfigPatchesJSON6902")] = ()
