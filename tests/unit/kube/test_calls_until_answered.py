"""A call that a component cannot do without is made until it is answered, and says why not yet."""

from __future__ import annotations

import pytest

from cedana_sched.kube import retrying
from cedana_sched.kube.errors import AbsentError, ApiError, RefusedByServerError
from cedana_sched.kube.retrying import until_answered


async def test_every_refusal_is_said_and_the_call_made_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retrying, "FIRST_PAUSE_SECONDS", 0.001)
    refusals: list[ApiError] = [RefusedByServerError("no rights"), AbsentError("no node")]
    said: list[str] = []

    async def call(answer: str) -> str:
        if refusals:
            raise refusals.pop(0)
        return answer

    assert await until_answered("reading", lambda: call("well"), said.append) == "well"
    assert said == ["reading: no rights", "reading: no node"]
