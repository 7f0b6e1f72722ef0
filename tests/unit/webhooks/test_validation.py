"""What is refused of that which people write, and with which remedy."""

from __future__ import annotations

from typing import Any

import pytest

from cedana_sched.model.policy import LONGEST_DEADLINE_SECONDS
from cedana_sched_webhooks import validation
from cedana_sched_webhooks.admission import Answer
from tests.unit.webhooks.admission_builders import creation


def ask(plural: str, spec: Any, longest_seconds: float = LONGEST_DEADLINE_SECONDS) -> Answer:
    check = validation.checks_by_kind(longest_seconds)[plural]
    return validation.validate_write(creation({"metadata": {"name": "x"}, "spec": spec}), check)


@pytest.mark.parametrize(
    ("plural", "spec"),
    [
        ("checkpointpolicies", {}),
        ("checkpointpolicies", None),
        ("checkpointpolicies", {"deadlineSeconds": 120, "retention": {"keepLast": 2}, "compression": "zstd"}),
        ("checkpointstorages", {"posix": {"path": "/lab/snapshots"}}),
        ("checkpointstorages", {"s3": {"bucket": "b"}}),
        ("checkpointstorages", {"s3": {"bucket": "b", "endpoint": "https://s3.example.com:9000"}}),
        ("checkpointstorages", {"s3": {"bucket": "b", "endpoint": "http://s3.example.com", "allowHttp": True}}),
    ],
)
def test_what_is_valid(plural: str, spec: Any) -> None:
    assert ask(plural, spec) == Answer("valid")


@pytest.mark.parametrize(
    ("plural", "spec", "parts"),
    [
        ("checkpointpolicies", {"deadlineSeconds": 0}, ("spec.deadlineSeconds: 0 is not allowed", "greater than 0")),
        ("checkpointpolicies", {"compression": "gzip"}, ("spec.compression: 'gzip'", "'lz4'")),
        (
            "checkpointpolicies",
            {"retention": {"keepLast": 0}},
            ("spec.retention.keepLast: 0 is not allowed", "greater"),
        ),
        (
            "checkpointpolicies",
            {"allowedNamespaces": {"names": ["lab"]}},
            ("spec.allowedNamespaces.from: None is missing",),
        ),
        (
            "checkpointpolicies",
            {"allowedNamespaces": {"from": "All", "names": ["lab"]}},
            ("spec.allowedNamespaces", "write 'from: Names'"),
        ),
        ("checkpointpolicies", {"allowedNamespaces": {"from": "Names", "names": ["*"]}}, ("names.0: '*'",)),
        ("checkpointpolicies", {"podSelector": {}}, ("spec.podSelector: {}", "write 'namespaceSelector: {}'")),
        (
            "checkpointpolicies",
            {"podSelector": {"matchExpressions": [{"key": "a", "operator": "Exists", "values": ["b"]}]}},
            ("spec.podSelector.matchExpressions.0", "write values with the operators In and NotIn"),
        ),
        (
            "checkpointpolicies",
            {"podSelector": {"matchLabels": {"a b": "c"}}},
            ("spec.podSelector.matchLabels", "'a b' is no key of a label: write [PREFIX/]NAME"),
        ),
        ("checkpointpolicies", {"podSelector": {"matchLabels": {"a": "-"}}}, ("matchLabels.a: '-'",)),
        ("checkpointstorages", {}, ("spec: {} names no storage", "exactly one of spec.s3 and spec.posix")),
        ("checkpointstorages", {"s3": {"bucket": "b"}, "posix": {"path": "/p"}}, ("names two", "exactly one")),
        ("checkpointstorages", {"s3": {}}, ("spec.s3.bucket: None is missing",)),
        ("checkpointstorages", {"s3": {"bucket": "b", "secret": {}}}, ("spec.s3.secret.name: None is missing",)),
        ("checkpointstorages", {"posix": {"path": "relative"}}, ("spec.posix.path: 'relative'", "^/")),
        (
            "checkpointstorages",
            {"s3": {"bucket": "b", "endpoint": "host:9000"}},
            ("'host:9000'", "https://host[:port]"),
        ),
        (
            "checkpointstorages",
            {"s3": {"bucket": "b", "endpoint": "http://h.example.com"}},
            ("not encrypted", "allowHttp"),
        ),
    ],
)
def test_what_is_refused_names_field_value_and_remedy(plural: str, spec: Any, parts: tuple[str, ...]) -> None:
    answer = ask(plural, spec)
    assert answer.refusal is not None
    assert (answer.refusal.code, answer.refusal.reason) == (422, "Invalid")
    for part in parts:
        assert part in answer.refusal.message


@pytest.mark.parametrize(
    ("name", "spec", "warned"),
    [
        ("x", {"imageMayChange": True}, ("spec.imageMayChange applies to no pod",)),
        ("x", {"imageMayChange": True, "allowedNamespaces": {"from": "All"}}, ()),
        ("default", {"imageMayChange": True}, ()),
        ("default", {"allowedNamespaces": {"from": "Names"}}, ("says nothing here",)),
        ("x", {"podSelector": {"matchLabels": {"app": "md"}}}, ()),
        ("x", {"namespaceSelector": {}}, ("spec.namespaceSelector says nothing here",)),
        ("x", {"podSelector": {}, "namespaceSelector": {}}, ("opts in all pods of all namespaces",)),
        (
            "x",
            {"podSelector": {}, "namespaceSelector": {"matchLabels": {"team": "bio"}}},
            ("all pods of the namespaces that it selects",),
        ),
    ],
)
def test_what_counts_for_nobody_is_warned_of(name: str, spec: Any, warned: tuple[str, ...]) -> None:
    check = validation.checks_by_kind(3_600)["checkpointpolicies"]
    answer = validation.validate_write(creation({"metadata": {"name": name}, "spec": spec}), check)
    assert answer.refusal is None
    assert len(answer.warnings) == len(warned)
    for warning, part in zip(answer.warnings, warned, strict=True):
        assert part in warning


def test_a_deletion_is_not_looked_at() -> None:
    request = creation({"spec": {"posix": "x"}})
    gone = type(request)(uid="1", old_object=request.object)
    assert validation.validate_write(gone, validation.check_storage) == Answer("not-ours")
