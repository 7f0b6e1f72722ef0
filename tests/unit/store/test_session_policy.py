"""What a namespace's credentials may do: what is named, and nothing beside it."""

from __future__ import annotations

import fnmatch
import json
from typing import Any

import pytest

from cedana_sched.model.errors import UsageError
from cedana_sched.store.session_policy import LONGEST_POLICY, session_policy

MINE = "research.7c9e6679-7425-40de-944b-e07fc1f90ae7"
OTHERS = (
    "research.00000000-7425-40de-944b-e07fc1f90ae7",
    "research",
    "finance.7c9e6679-7425-40de-944b-e07fc1f90ae7",
    f"{MINE}x",
)


def read(prefix: str = "some/prefix", namespace: str = MINE) -> list[dict[str, Any]]:
    statements: list[dict[str, Any]] = json.loads(session_policy("bucket", prefix, namespace))["Statement"]
    return statements


def allowed(statements: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [one for one in statements if one["Effect"] == "Allow"]


def objects(statements: list[dict[str, Any]]) -> list[str]:
    return [one for statement in allowed(statements) for one in statement["Resource"] if "/" in one]


@pytest.mark.parametrize("prefix", ["", "some/prefix"])
def test_objects_of_the_namespace_alone_are_named(prefix: str) -> None:
    root = f"arn:aws:s3:::bucket/{prefix}/" if prefix else "arn:aws:s3:::bucket/"
    patterns = objects(read(prefix))
    assert patterns == [f"{root}v1/{MINE}/*"]
    assert fnmatch.fnmatchcase(f"{root}v1/{MINE}/packs/a-1", patterns[0])
    for other in OTHERS:
        assert not fnmatch.fnmatchcase(f"{root}v1/{other}/packs/a-1", patterns[0])
    assert not fnmatch.fnmatchcase(f"{root}probe/x", patterns[0])


def test_listing_has_the_condition_that_narrows_it() -> None:
    listing = [one for one in read() if "s3:ListBucket" in one["Action"]]
    assert [one["Condition"] for one in listing] == [{"StringLike": {"s3:prefix": [f"some/prefix/v1/{MINE}/*"]}}]
    assert listing[0]["Resource"] == ["arn:aws:s3:::bucket"]


def test_no_action_and_no_effect_is_wider_than_what_is_needed() -> None:
    actions = {action for one in allowed(read()) for action in one["Action"]}
    assert actions == {"s3:GetObject", "s3:PutObject", "s3:DeleteObject", "s3:AbortMultipartUpload", "s3:ListBucket"}
    assert all(one["Resource"] != ["*"] for one in allowed(read()))


def test_a_session_begins_no_other_session() -> None:
    assert [one for one in read() if one["Effect"] == "Deny"] == [
        {"Effect": "Deny", "Action": ["sts:*"], "Resource": ["*"]}
    ]


@pytest.mark.parametrize(
    "namespace", ["", "*", "a/b", "..", "a/../b", f"{MINE}/*", f"{MINE}*", "${aws:username}", "a?", "a\nb", "."]
)
def test_a_namespace_that_would_widen_it_is_refused(namespace: str) -> None:
    with pytest.raises(UsageError):
        session_policy("bucket", "", namespace)


@pytest.mark.parametrize("prefix", ["a*", "a/?", "${aws:username}"])
def test_a_prefix_that_would_be_a_pattern_is_refused(prefix: str) -> None:
    with pytest.raises(UsageError, match="pattern"):
        session_policy("bucket", prefix, MINE)


def test_the_partition_of_another_cloud_region_is_kept() -> None:
    assert "arn:aws-cn:s3:::bucket" in session_policy("bucket", "", MINE, partition="aws-cn")


def test_the_longest_names_of_kubernetes_fit_in_what_sts_takes() -> None:
    longest = "n" * 63 + ".7c9e6679-7425-40de-944b-e07fc1f90ae7"
    assert len(session_policy("b" * 63, "p" * 300, longest)) < LONGEST_POLICY
    with pytest.raises(UsageError, match="too long"):
        session_policy("b" * 63, "p" * 1000, longest)
