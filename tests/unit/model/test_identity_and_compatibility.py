"""Identities are read as they are written; a machine that cannot continue a snapshot says why."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from cedana_sched.model import codec
from cedana_sched.model.compatibility import Compatibility
from cedana_sched.model.errors import UsageError
from cedana_sched.model.identity import Identity, SnapshotRef, name_of_namespace, namespace_store_key
from cedana_sched.model.policy import CheckpointPolicy, Retention
from cedana_sched.model.preemption import WorkloadRef
from cedana_sched.model.records import Checkpoint, Record, Restore, RestoreStep

NAMES = st.from_regex(r"\A[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?\Z")
HERE = Compatibility("x86_64", frozenset({"avx", "avx2"}), (6, 1), "4.2.1")


@given(NAMES, NAMES, st.integers(0, 10**6), NAMES, st.integers(1, 10**6))
def test_a_snapshots_name_is_read_as_it_was_written(
    namespace: str, id_: str, index: int, container: str, number: int
) -> None:
    ref = SnapshotRef(Identity(namespace, id_, index, container), number)
    assert SnapshotRef.parse(str(ref)) == ref


@given(NAMES, st.uuids())
def test_what_a_store_calls_a_namespace_leads_back_to_its_name(name: str, uid: UUID) -> None:
    called = namespace_store_key(name, str(uid))
    assert SnapshotRef.parse(f"{called}/md@1").identity.namespace == called
    assert (name_of_namespace(called), name_of_namespace("research")) == (name, "research")


@pytest.mark.parametrize(
    "uid", ["", "u1", "..", "0A1B2C3D-0000-4000-8000-000000000001", "a/0a1b2c3d-0000-4000-8000-000000000001"]
)
def test_what_is_no_uid_of_a_namespace_names_none(uid: str) -> None:
    with pytest.raises(UsageError):
        namespace_store_key("research", uid)


@pytest.mark.parametrize(
    "text", ["", "a", "a/b/c", "a/b/-1", "a/b/0/c/d", "a/b@0", "a/b@x", "../b@1", "a/b c@1", "a/é@1"]
)
def test_what_names_no_snapshot_is_refused_with_a_remedy(text: str) -> None:
    with pytest.raises(UsageError) as caught:
        SnapshotRef.parse(text)
    assert caught.value.remedy


@pytest.mark.parametrize(
    ("host", "says"),
    [
        (replace(HERE, architecture="aarch64"), "was taken on x86_64, this machine is aarch64"),
        (replace(HERE, cpu_features=frozenset({"avx"})), "CPU lacks avx2"),
        (replace(HERE, page_size_bytes=16384), "pages are 16384 bytes here"),
        (replace(HERE, kernel=(5, 15)), "kernel 5.15 is older than the snapshot's 6.1"),
    ],
)
def test_a_machine_that_cannot_continue_a_snapshot_says_why(host: Compatibility, says: str) -> None:
    assert any(says in reason for reason in HERE.reasons_against(host))


def test_a_machine_that_has_more_continues_a_snapshot() -> None:
    more = replace(HERE, cpu_features=HERE.cpu_features | {"avx512f"}, kernel=(6, 18))
    assert HERE.reasons_against(more) == ()


@pytest.mark.parametrize(
    ("taken_with", "here", "needs"),
    [
        ("4.2.1", "4.2.1", False),
        ("4.2", "4.2.0", False),
        ("4.2", "4.2.1", False),
        ("3.19", "4.0", False),
        ("4.2.1", "4.2", True),
        ("4.3", "4.2.1", True),
        ("4.10", "4.9.9", True),
        ("5", "4.2.1", True),
        ("", "4.2.1", False),
        ("4.3", "", False),
        ("9" * 5_000, "4.2.1", False),
        ("4.3-dirty", "4.2.1", False),
    ],
)
def test_images_of_a_newer_criu_are_for_no_older_one(taken_with: str, here: str, needs: bool) -> None:
    taken = replace(HERE, criu=taken_with)
    assert taken.needs_newer_criu_than(replace(HERE, criu=here)) is needs
    assert taken.reasons_against(replace(HERE, criu=here)) == (), "an upgrade heals it: no node is left out for good"


def test_records_come_back_from_json_with_their_kind_and_policy() -> None:
    policy = CheckpointPolicy(deadline_seconds=5, retention=Retention(keep_last=7))
    restore = Restore(
        uid="r",
        adapter="toy",
        workload=WorkloadRef("w", "ns", "name", "node"),
        identity=Identity("ns", "id"),
        policy=policy,
        step=RestoreStep.WAITING,
        created_at=1.0,
        deadline=2.0,
    )
    back: Any = codec.decode(codec.encode(restore), Record)  # type: ignore[arg-type]  # a union is no type[...]
    assert back == restore
    assert not isinstance(back, Checkpoint)
    assert back.policy.retention.keep_last == 7
