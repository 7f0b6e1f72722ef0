"""Policies that keep more generations than are read count as those that keep as many as may be."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from cedana_sched.model.objects.checkpoint_policy import read_spec
from cedana_sched.model.policy import Retention


@pytest.mark.parametrize("kept", [500, 501, 10_000])
def test_a_policy_of_an_earlier_state_is_read(kept: int) -> None:
    spec = read_spec("long", {"retention": {"keepLast": kept}, "onRestoreFailure": "Fail"})
    assert spec.retention.keep_last == 500


@pytest.mark.parametrize("kept", [0, -1, 10_001, True, "many"])
def test_what_no_policy_could_ever_keep_is_refused(kept: object) -> None:
    with pytest.raises(ValidationError):
        Retention.model_validate({"keepLast": kept}, strict=True)
