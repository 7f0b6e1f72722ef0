"""What an installation allows bounds every deadline that a policy names, and no other field."""

from __future__ import annotations

import pytest

from cedana_sched.model.deadline_cap import cap_deadlines, check_deadlines
from cedana_sched.model.errors import UsageError
from cedana_sched.model.policy import CheckpointPolicy

LONG = CheckpointPolicy(deadline_seconds=86_400, restore_deadline_seconds=7_200, quick_failure_threshold=5)


def test_every_deadline_of_a_policy_is_bounded() -> None:
    named = {name for name in CheckpointPolicy.model_fields if name.endswith("deadline_seconds")}
    assert named == {"deadline_seconds", "restore_deadline_seconds"}
    found = cap_deadlines(LONG, 3_600)
    assert {getattr(found, name) for name in named} == {3_600}
    assert found.model_copy(update={name: getattr(LONG, name) for name in named}) == LONG


def test_what_is_below_stays_as_it_is() -> None:
    assert cap_deadlines(LONG, 86_400) is LONG
    assert cap_deadlines(LONG, 43_200).restore_deadline_seconds == 7_200


@pytest.mark.parametrize("field", ["deadline_seconds", "restore_deadline_seconds"])
def test_a_refusal_names_field_value_and_remedy(field: str) -> None:
    allowed, above = (CheckpointPolicy.model_validate({field: seconds}) for seconds in (3_600, 3_601))
    check_deadlines(allowed, 3_600)
    with pytest.raises(UsageError, match=r"spec\.\w*eadlineSeconds: 3601.0 is longer .*longestDeadlineSeconds"):
        check_deadlines(above, 3_600)
