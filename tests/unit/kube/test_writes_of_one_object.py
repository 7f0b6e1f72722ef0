"""A write that is meant for one object reaches it or says so, and never reaches another one of that name."""

from __future__ import annotations

from typing import Any

import pytest

from cedana_sched.kube.builtin_kinds import Metadata, PartialObject
from cedana_sched.kube.errors import ApiUnavailableError, ConflictError
from cedana_sched.kube.patch_preconditions import patch_same
from cedana_sched.kube.resources import PODS
from cedana_sched.model.objects import names
from cedana_sched.testing import FakeApi

PATCH = {"metadata": {"labels": {names.PROTECTED: "true"}}}


async def _seen(api: FakeApi) -> Metadata:
    api.put(PODS, {"metadata": {"name": "p", "namespace": "lab"}})
    return (await api.get(PODS, "p", "lab", into=PartialObject)).metadata


async def test_object_that_was_seen_is_written() -> None:
    api = FakeApi()
    assert await patch_same(api, PODS, await _seen(api), PATCH)
    assert (await api.get(PODS, "p", "lab", into=PartialObject)).metadata.labels == {names.PROTECTED: "true"}


async def test_object_that_is_gone_is_told() -> None:
    api = FakeApi()
    seen = await _seen(api)
    api.remove(PODS, "p", "lab")
    assert not await patch_same(api, PODS, seen, PATCH)


async def test_other_object_of_its_name_is_left_alone() -> None:
    api = FakeApi()
    seen = await _seen(api)
    api.remove(PODS, "p", "lab")
    assert (await _seen(api)).uid != seen.uid
    assert not await patch_same(api, PODS, seen, PATCH)
    assert (await api.get(PODS, "p", "lab", into=PartialObject)).metadata.labels == {}


async def test_conflict_with_another_writer_says_nothing_of_the_object(monkeypatch: pytest.MonkeyPatch) -> None:
    api = FakeApi()
    seen = await _seen(api)

    async def conflicting(*_: Any, **__: Any) -> None:
        raise ConflictError("the object has been modified", status=409, reason="Conflict")

    monkeypatch.setattr(api, "patch", conflicting)
    with pytest.raises(ApiUnavailableError, match="has been modified"):
        await patch_same(api, PODS, seen, PATCH)
