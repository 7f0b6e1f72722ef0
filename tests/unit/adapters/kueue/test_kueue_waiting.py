"""A Workload that Kueue would end for good because of our updates waits instead, and its status says why."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from cedana_sched.kube.client import Object
from cedana_sched.kube.resources import CHECKPOINT_POLICIES, JOBS
from cedana_sched.model.identity import Identity, SnapshotRef
from cedana_sched.model.objects import names
from cedana_sched.model.objects.object_names import derived_id
from cedana_sched_kueue.objects import ADMISSION_CHECKS, WORKLOADS
from tests.unit.adapters.kueue.kueue_builders import JOB_UID
from tests.unit.adapters.kueue.kueue_stage import NAMESPACE, KueueStage

DERIVED = derived_id("md", JOB_UID)


class Stage(KueueStage):
    """A Workload of a Job whose template says another policy of its queue than the check."""

    def __init__(self, *, is_saved: bool) -> None:
        super().__init__()
        self._is_saved = is_saved
        written = {names.ID: DERIVED, names.DERIVED_ID: "true", names.QUEUE_POLICY: "hourly", names.POLICY: "hourly"}
        template: Object = {"metadata": {"annotations": written}, "spec": {"containers": [{"name": "main"}]}}
        metadata = {"name": "md", "namespace": NAMESPACE}
        self.api.put(JOBS, {"metadata": {**metadata, "uid": JOB_UID}, "spec": {"suspend": True, "template": template}})
        for name in ("hourly", "weekly"):
            self.api.put(CHECKPOINT_POLICIES, {"metadata": {"name": name}})
        self.name_in_the_check("weekly")
        status: Object = {
            "conditions": [{"type": "QuotaReserved", "status": "True"}],
            "admissionChecks": [{"name": "save", "state": "Pending", "message": ""}],
        }
        spec = {"podSets": [{"name": "main", "template": template}]}
        owned = {**metadata, "ownerReferences": [self._owner("md")]}
        self.api.put(WORKLOADS, {"metadata": owned, "spec": spec, "status": status})

    def name_in_the_check(self, policy: str) -> None:
        parameters = {"apiGroup": names.GROUP, "kind": "CheckpointPolicy", "name": policy}
        spec = {"controllerName": names.ADMISSION_CHECK_CONTROLLER, "parameters": parameters}
        self.api.put(ADMISSION_CHECKS, {"metadata": {"name": "save"}, "spec": spec})

    def snapshots_of(self, namespace: str, identifier: str) -> Iterable[SnapshotRef]:
        is_it = self._is_saved and (namespace, identifier) == (NAMESPACE, DERIVED)
        return (SnapshotRef(Identity(namespace, identifier, 0), 1),) if is_it else ()

    @property
    def check(self) -> Object:
        (workload,) = self.api.all_of(WORKLOADS)
        (state,) = workload["status"]["admissionChecks"]
        return dict(state)


async def test_it_waits_until_the_check_says_what_its_template_says() -> None:
    stage = Stage(is_saved=False)
    async with stage.adapter():
        await stage.wait_until_reported()
        assert stage.check["state"] == "Pending"
        assert "'hourly' is not the policy of the queue's AdmissionCheck, 'weekly'" in stage.check["message"]
        stage.name_in_the_check("hourly")
        await stage.wait_until_reported()
        assert stage.check["state"] == "Ready"


async def test_it_is_written_once(monkeypatch: pytest.MonkeyPatch) -> None:
    stage, written = Stage(is_saved=False), []
    apply = stage.api.apply

    async def counted(resource: object, body: Object, **how: str) -> None:
        written.append(resource)
        await apply(resource, body, **how)  # type: ignore[arg-type]  # as it is called

    monkeypatch.setattr(stage.api, "apply", counted)
    async with stage.adapter():
        for _ in range(3):
            stage.api.merge(WORKLOADS, "md", NAMESPACE, {"metadata": {"labels": {"a": "b"}}})
            await stage.wait_until_reported()
    assert written.count(WORKLOADS) == 1


async def test_a_job_that_has_snapshots_of_us_returns_whatever_its_template_says_of_its_queue() -> None:
    stage = Stage(is_saved=True)
    async with stage.adapter():
        await stage.wait_until_reported()
        assert stage.check["state"] == "Ready"
        assert stage.check["podSetUpdates"] == []
        assert stage.check["message"] == f"continues from {DERIVED}/0@1"
