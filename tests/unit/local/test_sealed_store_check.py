"""An engine asks its store whether it has the keys, and starts all the same where the store does not answer."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterator
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from cedana_sched.local import sealed_store_check
from cedana_sched.local.sealed_store_check import require_keys
from cedana_sched.model.errors import SealedError, StoreDeniedError, StoreUnavailableError
from tests.servers.sealing import new_keys, sealed_store


class _Store:
    def __init__(self, answer: Callable[[], object]) -> None:
        self._answer = answer

    def require_keys(self, namespaces: Collection[str]) -> None:
        self._answer()


@pytest.fixture
def unlocked() -> Iterator[threading.Event]:
    event = threading.Event()
    yield event
    event.set()


async def test_the_remedy_names_the_ways_out(tmp_path: Path) -> None:
    await require_keys(sealed_store(tmp_path / "store", new_keys(tmp_path)), ["default"])
    with pytest.raises(SealedError) as refused:
        await require_keys(sealed_store(tmp_path / "store", None), ["default"])
    assert f"namespace default of the folder {tmp_path / 'store'} is sealed" in refused.value.message
    for way in ("--key-file", "--store", "cedana-sched keys erase NAMESPACE"):
        assert way in refused.value.remedy


@pytest.mark.parametrize("error", [StoreUnavailableError("it is away"), StoreDeniedError("wrong keys of the bucket")])
async def test_a_store_that_says_nothing_of_it_is_a_warning(error: Exception) -> None:
    def fail() -> None:
        raise error

    with capture_logs() as logs:
        await require_keys(_Store(fail), ["default"])
    assert [(one["log_level"], one["error"]) for one in logs] == [("warning", str(error))]


async def test_a_store_that_does_not_answer_is_one_as_well(
    unlocked: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sealed_store_check, "CHECK_SECONDS", 0.05)
    with capture_logs() as logs:
        await require_keys(_Store(unlocked.wait), ["default"])
    assert [(one["log_level"], one["error"]) for one in logs] == [("warning", "it does not answer")]
