"""`kubeadmConfigPatches`: merge patches (RFC 7386) for the documents that kind hands to kubeadm.

A patch finds its document by `kind`. As in kind, `apiVersion` may be left out, and then extra arguments may have the
older form of a mapping; kind turns both into the list of v1beta4 and merges it by name, and so does this module.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Final

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, ValidationError, ValidationInfo
from pydantic.alias_generators import to_camel

from tests.cluster.kind_config.component_fields import KUBE_PROXY_FIELDS, KUBELET_FIELDS, is_set_by_the_cluster
from tests.cluster.kind_config.labels_and_taints import checked_key, checked_value, parse_labels, parse_taints
from tests.cluster.kind_config.merge_patch import merge
from tests.cluster.kind_config.refusal import RefusedFieldError, field_path, first_refusal, refused
from tests.cluster.kind_config.shape import TaintEffect
from tests.cluster.kind_config.yaml_documents import patch_documents

_UNKNOWN: Final = "is not honoured by the test cluster"
_ARGUMENT = re.compile("[a-z][a-z0-9-]*")


@dataclass(frozen=True)
class Patch:
    """One patch; `content` is its document without `kind`, `apiVersion` and `metadata`, and null where it deletes."""

    kind: str
    content: Mapping[str, Any]


def _by_name(written: Any, info: ValidationInfo) -> Any:
    """Both forms of extra arguments as a mapping; null deletes one."""
    if isinstance(written, dict):
        if info.context:
            raise refused("is a mapping, which v1beta4 does not know", "write a list of name and value")
        return written
    if not isinstance(written, list):
        return written
    arguments = {}
    for item in written:
        if not isinstance(item, dict) or not {"name"} <= item.keys() <= {"name", "value"}:
            raise refused("is no argument", "write its name and its value", value=item)
        arguments[item["name"]] = item.get("value")
    return arguments


def _for_kind_files(arguments: dict[str, str | None] | None) -> dict[str, str | None] | None:
    for name, value in (arguments or {}).items():
        if not _ARGUMENT.fullmatch(name):
            raise refused("belongs to what is no argument", "write its name without dashes", field=name, value=value)
        if is_set_by_the_cluster(name):
            remedy = "remove it: the cluster sets it itself, or the file has a field for it"
            raise refused(_UNKNOWN, remedy, field=name, value=value)
    return arguments


def _readable(arguments: dict[str, str | None] | None) -> dict[str, str | None] | None:
    parse_labels((arguments or {}).get("node-labels") or "")
    parse_taints((arguments or {}).get("register-with-taints") or "")
    return arguments


Arguments = Annotated[dict[str, str | None] | None, BeforeValidator(_by_name), AfterValidator(_for_kind_files)]


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, alias_generator=to_camel)


class Taint(_Part):
    """As in v1.Taint; `timeAdded` is not for people to write."""

    key: Annotated[str, AfterValidator(checked_key)]
    value: Annotated[str, AfterValidator(checked_value)] = ""
    effect: TaintEffect


class Registration(_Part):
    """`nodeRegistration`."""

    taints: list[Taint] | None = None
    kubelet_extra_args: Annotated[Arguments, AfterValidator(_readable)] = None


class Component(_Part):
    """One of the control plane."""

    extra_args: Arguments = None


class ClusterConfiguration(_Part):
    """What is honoured of it."""

    api_server: Component | None = None
    controller_manager: Component | None = None
    scheduler: Component | None = None


class NodeConfiguration(_Part):
    """What is honoured of an InitConfiguration and a JoinConfiguration."""

    node_registration: Registration | None = None


_MODELS: Mapping[str, type[_Part]] = {
    "ClusterConfiguration": ClusterConfiguration,
    "InitConfiguration": NodeConfiguration,
    "JoinConfiguration": NodeConfiguration,
}
_FIELDS = {"KubeletConfiguration": KUBELET_FIELDS, "KubeProxyConfiguration": KUBE_PROXY_FIELDS}
_VERSIONS = {
    **dict.fromkeys(_MODELS, "kubeadm.k8s.io/v1beta4"),
    "KubeletConfiguration": "kubelet.config.k8s.io/v1beta1",
    "KubeProxyConfiguration": "kubeproxy.config.k8s.io/v1alpha1",
}


def read_patches(texts: Sequence[str], field: str) -> list[list[Patch]]:
    """The patches of each entry of `field`.

    Raises:
        RefusedFieldError: one of them says what is not honoured.
    """
    return [
        [_read(document, f"{field}[{index}]") for document in patch_documents(text, f"{field}[{index}]")]
        for index, text in enumerate(texts)
    ]


def _read(document: dict[str, Any], field: str) -> Patch:
    kind, version = document.pop("kind", None), document.pop("apiVersion", None)
    if not isinstance(kind, str) or kind not in _VERSIONS:
        raise RefusedFieldError(f"{field}.kind", kind, _UNKNOWN, remedy=f"write one of {', '.join(_VERSIONS)}")
    if version not in (None, _VERSIONS[kind]):
        problem = "is not the version of Kubernetes 1.36, for which kind passes the patch over without a word"
        raise RefusedFieldError(
            f"{field}.apiVersion", version, problem, remedy=f"leave it out, or write {_VERSIONS[kind]}"
        )
    if document.get("metadata") == {"name": "config"}:  # kind needed it once, and takes it out
        del document["metadata"]
    if kind in _MODELS:
        try:
            model = _MODELS[kind].model_validate(document, context=version)
        except ValidationError as error:
            raise first_refusal(error, field, unknown=_UNKNOWN) from error
        return Patch(kind, model.model_dump(by_alias=True, exclude_unset=True))
    for name, value in document.items():
        if name not in _FIELDS[kind]:
            remedy = "remove it: the cluster sets it itself, or Kubernetes 1.36 has no such field"
            raise RefusedFieldError(field_path(field, name), value, _UNKNOWN, remedy=remedy)
    if document.get("mode", "nftables") not in ("nftables", None):
        raise RefusedFieldError(f"{field}.mode", document["mode"], _UNKNOWN, remedy="write nftables, or leave it out")
    return Patch(kind, document)


def patched(kind: str, base: Mapping[str, Any], patches: Sequence[Patch]) -> dict[str, Any]:
    """A document after its patches, one after the other."""
    document: dict[str, Any] = dict(base)
    for patch in patches:
        if patch.kind == kind:
            document = merge(document, patch.content)
    return document
