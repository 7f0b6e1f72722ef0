"""Validation of CheckpointPolicies and CheckpointStorages at admission; each refusal has a remedy."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TypeVar

from pydantic import BaseModel, ValidationError

from cedana_sched.kube.client import Object
from cedana_sched.kube.resources import CHECKPOINT_POLICIES, CHECKPOINT_STORAGES
from cedana_sched.model.deadline_cap import check_deadlines
from cedana_sched.model.errors import UsageError
from cedana_sched.model.objects.base import parse_stored_object
from cedana_sched.model.objects.checkpoint_policy import DEFAULT, CheckpointPolicySpec, ineffective_fields
from cedana_sched.model.objects.checkpoint_storage import CheckpointStorageSpec
from cedana_sched_webhooks.admission import Answer, Refusal, Request

M = TypeVar("M", bound=BaseModel)


Check = Callable[[Object], tuple[str, ...]]
"""Validates an object. Returns warnings; raises UsageError to refuse it."""


def check_policy(policy: Object, longest_seconds: float) -> tuple[str, ...]:
    """Validate a policy; warn about fields without effect.

    Raises:
        UsageError: a field is missing or out of range, or a deadline exceeds the installation's cap.
    """
    spec = _read(CheckpointPolicySpec, policy.get("spec") or {})
    check_deadlines(spec, longest_seconds)
    name = (policy.get("metadata") or {}).get("name", "")
    warnings = [
        f"cedana: {field} applies to no pod: write spec.allowedNamespaces" for field in ineffective_fields(name, spec)
    ]
    if name == DEFAULT and spec.allowed_namespaces is not None:
        warnings.append(
            f"cedana: spec.allowedNamespaces says nothing here: the policy {DEFAULT!r} is for all (remove it)"
        )
    if spec.pod_selector is None and spec.namespace_selector is not None:
        warnings.append("cedana: spec.namespaceSelector says nothing here: write spec.podSelector, too")
    if spec.pod_selector is not None and spec.pod_selector.is_empty and spec.namespace_selector is not None:
        where = "all namespaces" if spec.namespace_selector.is_empty else "the namespaces that it selects"
        warnings.append(f"cedana: spec.podSelector is empty: the policy opts in all pods of {where} that may use it")
    return tuple(warnings)


def check_storage(body: Object) -> tuple[str, ...]:
    """Validate a storage; no warnings.

    Raises:
        UsageError: as for a policy, or it names no storage, or two, or an endpoint that is invalid or unencrypted.
    """
    spec = body.get("spec") or {}
    storage = _read(CheckpointStorageSpec, spec)
    if (storage.s3 is None) == (storage.posix is None):
        remedy = "give exactly one of spec.s3 and spec.posix"
        raise UsageError("spec", spec, "names no storage" if storage.s3 is None else "names two", remedy=remedy)
    endpoint = storage.s3.endpoint if storage.s3 is not None else None
    if storage.s3 is None or endpoint is None:
        return ()
    scheme, separator, host = endpoint.partition("://")
    if not separator or not host or scheme not in {"http", "https"}:
        remedy = "write https://host[:port]"
        raise UsageError("spec.s3.endpoint", endpoint, "is no address of a server", remedy=remedy)
    if scheme == "http" and not storage.s3.allow_http:
        remedy = "use https, or set spec.s3.allowHttp: memory then crosses the network in the clear"
        raise UsageError("spec.s3.endpoint", endpoint, "is not encrypted", remedy=remedy)
    return ()


def checks_by_kind(longest_seconds: float) -> dict[str, Check]:
    """Return checks by the path's last segment, the kind's plural name; the argument caps policies' deadlines."""
    return {
        CHECKPOINT_POLICIES.plural: functools.partial(check_policy, longest_seconds=longest_seconds),
        CHECKPOINT_STORAGES.plural: check_storage,
    }


def validate_write(request: Request, check: Check) -> Answer:
    """Decide whether an object may be written; deletions are not checked."""
    if request.object is None:
        return Answer("not-ours")
    try:
        warnings = check(request.object)
    except UsageError as error:
        return Answer("refused", refusal=Refusal(422, "Invalid", str(error)))
    return Answer("valid", warnings=warnings)


def _read(model: type[M], spec: object) -> M:
    try:
        return parse_stored_object(model, spec)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        field, message = ".".join(("spec", *map(str, first["loc"]))), first["msg"]
        is_missing = first["type"] == "missing"
        value, problem = (None, "is missing") if is_missing else (first["input"], "is not allowed")
        raise UsageError(field, value, problem, remedy=message[:1].lower() + message[1:]) from error
