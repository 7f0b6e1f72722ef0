"""Files of a volume that outlives its pod, and that changed between the snapshot and the restore."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cedana_sched.agent.workload_runtime import UNKNOWN_ORIGIN, SnapshotOrigin
from cedana_sched.model.errors import FilesChangedError, RestoreError
from cedana_sched.model.policy import OnRestoreFailure, OnVolumeChange
from cedana_sched.runtime_handler.outside_files import OUTSIDE_FILES
from cedana_sched.runtime_handler.plan import read_result
from tests.integration.cluster.node.pods import Pod, until
from tests.integration.cluster.node.restoring.conftest import Site

pytestmark = pytest.mark.criu

RAN_ON = SnapshotOrigin(ran_on=True, is_same_identity=True)
OF_ANOTHER = SnapshotOrigin(ran_on=True, is_same_identity=False)
REWIND, COLD_START, FAIL = OnVolumeChange.REWIND, OnVolumeChange.COLD_START, OnVolumeChange.FAIL

WRITER = """
import os, time
file = open("/claim/log", "{mode}", buffering=0)
file.write(b"12345\\n")
while not os.path.exists("/claim/go"):
    print("waits")
    time.sleep(0.02)
file.write(b"after\\n")
print("went on")
time.sleep(60)
"""
PLAIN, APPEND, READ = "w", "a", "r"
WROTE = b"12345\n"
AHEAD = WROTE + b"ahead\n"


class Claim:
    """A volume that outlives pods."""

    def __init__(self, site: Site) -> None:
        self.site = site
        self.folder = site.folder / "claim"
        self.folder.mkdir()
        self.log = self.folder / "log"

    def mount(self, spec: dict[str, Any]) -> None:
        options = ["rbind", "rprivate", "rw"]
        mount = {"destination": "/claim", "type": "bind", "source": str(self.folder), "options": options}
        spec["mounts"].append(mount)

    def save(self, mode: str, *others: str) -> Path:
        """A pod that writes to the log, and its images as staged."""
        program = WRITER.replace('{mode}", buffering=0', f'{mode}b", buffering=0')
        if mode == READ:
            self.log.write_bytes(WROTE)
            program = program.replace('file.write(b"12345\\n")', "").replace('file.write(b"after\\n")', "file.read()")
        pod = self.site.node.pod("pod-1")
        for name in ("main", *others):
            pod.run(name, program, change=self.mount).await_lines(3)
        if mode != READ:
            self.log.write_bytes(WROTE) if others else None
        return self.site.take(pod)

    def bring_back(self, images: Path, origin: SnapshotOrigin, *start: str) -> tuple[Pod, BaseException | None]:
        self.site.template = self.mount
        self.site.origin = origin
        self.site.watched.other_images = True  # the saved pod's specification names one container only
        pod = self.pod = self.site.replacement("pod-2", *(start or ("main",)))
        error = self.site.bring_back(pod, images, *(start or ("main",)))
        (self.folder / "go").touch()
        return pod, error

    def result(self, name: str = "main") -> tuple[bool, bool, bool]:
        result = read_result(str(self.site.state / "pods/pod-2"), name)
        assert result is not None
        self.notes = result.notes
        return result.restored, result.cold, result.files_changed


def last_line(pod: Pod, name: str = "main") -> str:
    container = pod.containers[name]
    until(lambda: container.lines[-1:] not in ([], ["waits"]), lambda: str(container.lines))
    return container.lines[-1]


@pytest.fixture
def claim(site: Site) -> Claim:
    return Claim(site)


def grow(claim: Claim) -> None:
    claim.log.write_bytes(AHEAD)


def shorten(claim: Claim) -> None:
    os.truncate(claim.log, 3)


def change_in_place(claim: Claim) -> None:
    with claim.log.open("r+b") as file:
        file.write(b"5")


def rotate(claim: Claim) -> None:
    claim.log.rename(claim.folder / "log.1")
    grow(claim)
    claim.log.chmod((claim.folder / "log.1").stat().st_mode)


def test_a_file_that_ran_ahead_is_rewound(claim: Claim) -> None:
    images = claim.save(PLAIN)
    grow(claim)
    pod, error = claim.bring_back(images, RAN_ON)
    assert error is None
    assert last_line(pod) == "went on"
    assert claim.log.read_bytes() == WROTE + b"after\n"
    assert claim.result() == (True, False, False)
    rewound = "/claim/log has grown (6 bytes at the snapshot, 12 now): truncated to its size at the snapshot"
    assert claim.notes == (rewound,)


@pytest.mark.parametrize(
    ("mode", "change", "content", "note"),
    [
        (APPEND, grow, AHEAD + b"after\n", "has grown"),
        (APPEND, shorten, b"123after\n", "is shorter"),
        (APPEND, rotate, AHEAD + b"after\n", "is another file of that name"),
        (PLAIN, change_in_place, b"52345\nafter\n", "was changed in place"),
        (READ, grow, AHEAD, None),
    ],
)
def test_what_cannot_be_rewound_is_left_with_a_note(
    claim: Claim, mode: str, change: Callable[[Claim], None], content: bytes, note: str | None
) -> None:
    images = claim.save(mode)
    change(claim)
    pod, error = claim.bring_back(images, RAN_ON)
    assert error is None
    assert last_line(pod) == "went on"
    assert claim.log.read_bytes() == content
    assert claim.result() == (True, False, False)
    assert [note is not None and note in one for one in claim.notes] == ([True] if note else [])


@pytest.mark.parametrize(
    ("origin", "change"),
    [(RAN_ON, shorten), (UNKNOWN_ORIGIN, grow), (OF_ANOTHER, grow)],
    ids=["shorter", "of unknown origin", "of another id"],
)
def test_a_file_that_must_not_be_rewound_is_a_failure_of_the_restore(
    claim: Claim, origin: SnapshotOrigin, change: Callable[[Claim], None]
) -> None:
    """As of CRIU, which compares sizes as well: `onRestoreFailure` decides."""
    images = claim.save(PLAIN)
    change(claim)
    changed = claim.log.read_bytes()
    pod, error = claim.bring_back(images, origin)
    assert last_line(pod) == "cold"
    assert isinstance(error, RestoreError)
    assert not isinstance(error, FilesChangedError)
    assert "container main: /claim/log" in str(error)
    assert "6 bytes at the snapshot" in str(error)
    assert claim.log.read_bytes() == changed
    assert claim.result() == (False, True, False)


@pytest.mark.parametrize("origin", [UNKNOWN_ORIGIN, OF_ANOTHER], ids=["of unknown origin", "of another id"])
def test_a_log_that_grew_by_others_is_not_truncated(claim: Claim, origin: SnapshotOrigin) -> None:
    images = claim.save(APPEND)
    grow(claim)
    pod, error = claim.bring_back(images, origin)
    assert error is None
    assert last_line(pod) == "went on"
    assert claim.log.read_bytes() == AHEAD + b"after\n"


def decide(claim: Claim, policy: OnVolumeChange) -> None:
    """Have the policy decide, and `onRestoreFailure` do the opposite."""
    others = {COLD_START: OnRestoreFailure.FAIL, FAIL: OnRestoreFailure.COLD_START}
    claim.site.watched.volume_changes, claim.site.watched.policy = policy, others[policy]


@pytest.mark.parametrize("change", [grow, shorten, change_in_place, rotate])
def test_the_policy_starts_a_pod_with_changed_files_cold(claim: Claim, change: Callable[[Claim], None]) -> None:
    decide(claim, COLD_START)
    images = claim.save(APPEND, "side")
    change(claim)
    changed = claim.log.read_bytes()
    pod, error = claim.bring_back(images, RAN_ON, "main", "side")
    assert isinstance(error, FilesChangedError)
    assert "and the policy has onVolumeChange: ColdStart (put the file back" in str(error)
    assert [last_line(pod, name) for name in ("main", "side")] == ["cold", "cold"]
    assert [claim.result(name) for name in ("main", "side")] == [(False, True, True)] * 2
    assert claim.log.read_bytes() == changed


@pytest.mark.parametrize("change", [grow, shorten, change_in_place, rotate])
def test_the_policy_fails_a_pod_with_changed_files(claim: Claim, change: Callable[[Claim], None]) -> None:
    """Also a second container must not start, which would start cold after another failure."""
    decide(claim, FAIL)
    images = claim.save(APPEND, "side")
    change(claim)
    changed = claim.log.read_bytes()
    with pytest.raises(AssertionError, match=f"and the policy has onVolumeChange: {FAIL}"):
        claim.bring_back(images, RAN_ON, "main", "side")
    pod = claim.pod
    side = pod.container("side")
    side.make(["/bin/echo", "cold"])
    side.change(claim.mount)
    with pytest.raises(AssertionError, match="another container of the pod was not restored"):
        side.start()
    assert [claim.result(name) for name in ("main", "side")] == [(False, False, True)] * 2
    assert [pod.containers[name].lines for name in ("main", "side")] == [[], []]
    assert claim.log.read_bytes() == changed


@pytest.mark.parametrize("policy", [REWIND, FAIL])
def test_a_file_of_two_containers_is_judged_by_the_first(claim: Claim, policy: OnVolumeChange) -> None:
    """The first runs, and writes, before the second is restored."""
    claim.site.watched.volume_changes = policy
    images = claim.save(PLAIN, "side")
    if policy is REWIND:
        grow(claim)
    (claim.folder / "go").touch()
    pod, error = claim.bring_back(images, RAN_ON, "main", "side")
    assert error is None
    assert [last_line(pod, name) for name in ("main", "side")] == ["went on", "went on"]
    assert claim.log.read_bytes() == WROTE + b"after\n", "both write at their position"


def test_a_snapshot_without_the_record_touches_nothing(claim: Claim) -> None:
    images = claim.save(PLAIN)
    (images / "main" / OUTSIDE_FILES).unlink()
    grow(claim)
    pod, error = claim.bring_back(images, RAN_ON)
    assert last_line(pod) == "cold"
    assert "/claim/log has 12 bytes now, and had 6 when the snapshot was taken" in str(error)
    assert claim.log.read_bytes() == AHEAD
