"""What is read of Kubernetes' own kinds can be used, or is not read."""

from __future__ import annotations

import msgspec
import pytest

from cedana_sched.kube.builtin_kinds import Pod


@pytest.mark.parametrize("time", ["2026-11-20T10:00:00Z", "2026-11-20T10:00:00.123456+00:00", None])
def test_start_of_a_pod_is_a_moment(time: str | None) -> None:
    pod = msgspec.convert({"metadata": {"name": "md-0"}, "status": {"startTime": time}}, Pod)
    assert pod.status.start_time == time


@pytest.mark.parametrize("time", ["three", "2026", "0001-01-01T00:00:00", "9" * 5_000])
def test_pod_whose_start_is_none_is_not_read(time: str) -> None:
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert({"metadata": {"name": "md-0"}, "status": {"startTime": time}}, Pod)
