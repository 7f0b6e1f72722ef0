"""The house's own rules on code find what they are there for, and leave alone what is right."""

from __future__ import annotations

from types import ModuleType

import pytest

from tests.unit.house.test_generated_docs import load


@pytest.fixture(scope="module")
def check_code() -> ModuleType:
    return load("check_code")


def _found(check_code: ModuleType, text: str, path: str = "tests/integration/local/engine/test_x.py") -> list[str]:
    return list(check_code.complaints(path, text))


@pytest.mark.parametrize(
    "text",
    [
        "for process in psutil.Process(1).children(recursive=True):\n    process.cmdline()",
        "found = [one for one in psutil.process_iter()]",
        "found = list(Path('/proc').glob('[0-9]*/cmdline'))",
        "for entry in Path('/proc').iterdir():\n    pass",
    ],
)
def test_a_search_for_processes_of_its_own(check_code: ModuleType, text: str) -> None:
    assert len(_found(check_code, text)) == 1
    assert _found(check_code, text, "tests/processes.py") == []


_READS = """
def spare(pid):
    with suppress({errors}):
        Path(f"/proc/{{pid}}/oom_score_adj").write_text("-1000")
"""


@pytest.mark.parametrize(
    ("errors", "missing"),
    [
        ("FileNotFoundError", "ProcessLookupError"),
        ("ProcessLookupError", "FileNotFoundError"),
        ("ValueError", "FileNotFoundError and ProcessLookupError"),
    ],
)
def test_a_process_that_ends_while_it_is_read(check_code: ModuleType, errors: str, missing: str) -> None:
    (complaint,) = _found(check_code, _READS.format(errors=errors), "cedana_sched/x.py")
    assert f"{missing} must be handled" in complaint


@pytest.mark.parametrize("errors", ["FileNotFoundError, ProcessLookupError", "OSError"])
def test_a_process_that_may_end_while_it_is_read(check_code: ModuleType, errors: str) -> None:
    assert _found(check_code, _READS.format(errors=errors), "cedana_sched/x.py") == []


def test_errors_that_the_caller_is_told_of(check_code: ModuleType) -> None:
    text = 'def f(pid):\n    """F.\n\n    Raises:\n        FileNotFoundError, ProcessLookupError: it ended.\n    """\n'
    assert _found(check_code, f'{text}    return Path(f"/proc/{{pid}}/stat").read_text()\n', "cedana_sched/x.py") == []


def test_an_assertion_whose_second_half_is_weaker(check_code: ModuleType) -> None:
    assert len(_found(check_code, 'assert "exit code 3" in said or "3" in said')) == 1
    assert _found(check_code, 'assert "a" in said or "b" in told') == []
    assert _found(check_code, "assert limit is None or used <= limit") == []


@pytest.mark.parametrize(
    "text",
    [
        "for folder, _, files in os.walk(volume):\n    pass",
        "shutil.rmtree(upper)",
        "with tarfile.open(archive) as opened:\n    opened.extractall(volume)",
        "found = list(volume.rglob('*'))",
    ],
)
def test_a_walk_by_path_where_pods_have_files(check_code: ModuleType, text: str) -> None:
    complaints = _found(check_code, text, "cedana_sched/cluster/node/containers/x.py")
    assert complaints
    assert all("runtime_handler/safe_open.py" in complaint for complaint in complaints)
    assert _found(check_code, text, "cedana_sched/cli/x.py") == []
    assert _found(check_code, text, "cedana_sched/agent/staging.py") == [], "these are its own"


def test_every_exception_to_walking_by_descriptors_is_still_one(check_code: ModuleType) -> None:
    near = check_code.WALKS_OWN_FOLDERS
    for path in near:
        text = (check_code.ROOT / path).read_text()
        assert list(check_code.complaints(f"{check_code.NEAR_PODS[0]}x.py", text)), f"{path} walks nothing any more"


@pytest.mark.parametrize(
    "text",
    [
        "async with asyncio.timeout(5):\n    await it()",
        "await asyncio.wait_for(it(), 10)",
        "await asyncio.wait_for(it(), timeout=59.0)",
        "done, _ = await asyncio.wait({task}, timeout=30)",
    ],
)
def test_a_guard_that_a_busy_machine_breaks(check_code: ModuleType, text: str) -> None:
    (complaint,) = _found(check_code, text)
    assert "give it 60" in complaint
    assert _found(check_code, text, "tests/cluster/x.py") == []


@pytest.mark.parametrize(
    "text",
    [
        "async with asyncio.timeout(60):\n    await it()",
        "with pytest.raises(TimeoutError):\n    await asyncio.wait_for(it(), 0.5)",
        "await asyncio.wait_for(it(), patient(5))",
        "async with asyncio.timeout(None):\n    await it()",
    ],
)
def test_a_guard_that_no_machine_breaks(check_code: ModuleType, text: str) -> None:
    assert _found(check_code, text) == []


@pytest.mark.parametrize(
    "text",
    [
        "began = time.time()",
        "def wait(now: Callable[[], float] = time.time): ...",
        "now = time.time_ns()",
        "from time import time",
        "now = datetime.now(tz=UTC)",
        "clock = lambda: datetime.datetime.now(UTC)",
        "today = date.today()",
        "time.clock_gettime(time.CLOCK_REALTIME)",
    ],
)
@pytest.mark.parametrize(
    "path", ["cedana_sched/kube/x.py", "webhooks/cedana_sched_webhooks/x.py", "adapters/kueue/cedana_sched_kueue/x.py"]
)
def test_clock_that_somebody_may_set(check_code: ModuleType, text: str, path: str) -> None:
    assert len(_found(check_code, text, path)) == 1
    assert _found(check_code, text) == [], "a test may look at it"


@pytest.mark.parametrize("text", ["began = time.monotonic()", "now = SERVER_TIME.now()", "from time import monotonic"])
def test_clocks_that_nobody_sets(check_code: ModuleType, text: str) -> None:
    assert _found(check_code, text, "cedana_sched/kube/x.py") == []


def test_who_tells_the_time_still_does(check_code: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    allowed = dict(check_code.TELLS_THE_TIME)
    monkeypatch.setattr(check_code, "TELLS_THE_TIME", {})
    for path in allowed:
        assert any("jumps" in one for one in check_code.complaints(path, (check_code.ROOT / path).read_text())), path


_LOOP = """
async def f():
    while True:
        try:
            return await g()
        except ApiError:
            await asyncio.sleep({pause})
"""


@pytest.mark.parametrize(
    "text",
    [
        "pause = min(pause * 2, LONGEST_PAUSE_SECONDS)",
        "wait, pause = pause, min(2 * pause, LONGEST)",
        "longest = min(FIRST_PAUSE_SECONDS * 2 ** min(target.refusals, 20), LONGEST_PAUSE_SECONDS)",
        "pause = pause * 1.5",
        "self.delay *= 2",
        "from tenacity import AsyncRetrying, wait_exponential",
        "attempts = tenacity.AsyncRetrying(wait=tenacity.wait_fixed(1))",
        "@tenacity.retry(stop=tenacity.stop_after_attempt(20))\nasync def withdraw(): ...",
        _LOOP.format(pause="5"),
    ],
)
def test_backoff_of_its_own(check_code: ModuleType, text: str) -> None:
    (complaint,) = _found(check_code, text, "cedana_sched/kube/x.py")
    assert "cedana_sched/retrying.py" in complaint
    assert _found(check_code, text) == [], "a test may wait as it likes"


@pytest.mark.parametrize(
    "text",
    [
        _LOOP.format(pause="backoff.next_pause()"),
        "@tenacity.retry(wait=AWAITED, stop=tenacity.stop_before_delay(60))\nasync def find(): ...",
        "milliseconds = milliseconds * 32 + digit",
        "threads = min(2 * cpus, 32)",
        "async def f():\n    while True:\n        await look()\n        await asyncio.sleep(LOOK_SECONDS)",
    ],
)
def test_pauses_of_a_profile(check_code: ModuleType, text: str) -> None:
    assert _found(check_code, text, "cedana_sched/kube/x.py") == []


def test_what_backs_off_by_itself_still_does(check_code: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    allowed = dict(check_code.BACKS_OFF)
    monkeypatch.setattr(check_code, "BACKS_OFF", {})
    for path in allowed:
        found = check_code.complaints(path, (check_code.ROOT / path).read_text())
        assert any("cedana_sched/retrying.py" in one for one in found), path


@pytest.mark.parametrize("text", ["import msgspec", "from cedana_sched.model import x", "def f():\n    import yaml"])
def test_a_library_where_none_is_installed(check_code: ModuleType, text: str) -> None:
    (complaint,) = _found(check_code, text, "cedana_sched/runtime_handler/x.py")
    assert "the standard library alone" in complaint
    assert _found(check_code, text, "cedana_sched/snapshot/x.py") == []


@pytest.mark.parametrize(
    "text",
    ["from __future__ import annotations", "import os.path", "from cedana_sched.runtime_handler.plan import read"],
)
def test_what_is_there_without_libraries(check_code: ModuleType, text: str) -> None:
    assert _found(check_code, text, "cedana_sched/runtime_handler/x.py") == []


@pytest.mark.parametrize(
    "text",
    [
        "from minio.helpers import _parse",
        "import minio._http",
        "from minio._http import get",
        "def f(client):\n    return getattr(client, '_execute')",
        "from minio import Minio\nclass Ours(Minio):\n    def f(self):\n        self._execute()",
        "import minio\nclass Ours(minio.api.Minio):\n    def _f(self):\n        super()._execute()",
    ],
)
def test_a_private_name_of_a_library(check_code: ModuleType, text: str) -> None:
    (complaint,) = _found(check_code, text, "cedana_sched/store/x.py")
    assert "private" in complaint


@pytest.mark.parametrize(
    "text",
    [
        "from cedana_sched.store.s3 import _x",  # ours: ruff looks at it
        "from __future__ import annotations",
        "from typing import NamedTuple\nclass One(NamedTuple):\n    def f(self):\n        return self._replace(a=1)",
        "from minio import Minio\nclass Ours(Minio):\n    def _f(self):\n        self._g = self._f\n        self._g()",
        "from x import Base\nclass Ours(Base, Own):\n    def f(self):\n        self._of_own()",
    ],
)
def test_names_that_may_be_used(check_code: ModuleType, text: str) -> None:
    assert _found(check_code, text, "cedana_sched/store/x.py") == []


@pytest.mark.parametrize(("key", "name"), [("problem", "error"), ("why", "reason")])
def test_a_key_of_a_log_line_with_two_names(check_code: ModuleType, key: str, name: str) -> None:
    (complaint,) = _found(check_code, f'log.warning("gone", {key}=str(error))', "cedana_sched/kube/x.py")
    assert complaint.endswith(f"call it `{name}`")
    assert _found(check_code, f'log.warning("gone", {name}=str(error))', "cedana_sched/kube/x.py") == []


def test_a_documented_name_that_is_no_parameter(check_code: ModuleType) -> None:
    text = '''def hold(seconds: float) -> None:
    """Wait.

    Args:
        {name}: how long.

    Raises:
        ValueError: too long.
    """
'''
    (complaint,) = _found(check_code, text.format(name="within"), "cedana_sched/kube/x.py")
    assert complaint.endswith("hold documents `within`, which is no parameter")
    assert _found(check_code, text.format(name="seconds"), "cedana_sched/kube/x.py") == []
