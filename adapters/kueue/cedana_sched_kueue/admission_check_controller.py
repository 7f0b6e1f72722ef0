"""Controller of our AdmissionCheck: sets the identity of a Workload's pods at each admission.

A Workload without a determinable identity passes without updates, and its message says so. A Workload that Kueue would
end because of our updates waits.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import structlog

from cedana_sched.adapter.cluster_contract import Snapshots
from cedana_sched.kube.builtin_kinds import PartialObject
from cedana_sched.kube.client import Api
from cedana_sched.kube.errors import AbsentError, ConflictError, RefusedByServerError
from cedana_sched.kube.resources import CHECKPOINT_POLICIES
from cedana_sched.kube.response_decoding import UnreadableSink
from cedana_sched.kube.server_time import SERVER_TIME
from cedana_sched.kube.watching import Informer, Watch
from cedana_sched.kube.work_queue import WorkQueue
from cedana_sched.model.identity import SnapshotRef
from cedana_sched.model.objects import names
from cedana_sched.model.served_namespaces import EVERYWHERE, ServedNamespaces
from cedana_sched_kueue.admission_check_decisions import (
    Answer,
    build_active_condition,
    build_pending_status,
    build_ready_status,
    decide_check_answer,
    describe_snapshots,
    is_ours,
    pending_checks,
    policy_of,
)
from cedana_sched_kueue.managed_kinds import ManagedKinds
from cedana_sched_kueue.objects import ADMISSION_CHECKS, WORKLOADS, AdmissionCheck, Workload

log = structlog.get_logger(__name__)

MANAGER = names.ADMISSION_CHECK_CONTROLLER
"""Field manager of our writes."""


class AdmissionCheckController:
    """Reconciles all AdmissionChecks whose `controllerName` is ours.

    Args:
        api: with the permissions of `rbac.yaml`.
        workloads: all of the cluster; not run here.
        snapshots: restorable ones.
        kinds: those whose Workloads' pods get an identity.
        unreadable: called for objects that cannot be read.
        served: namespaces whose Workloads get the identity of their pods; others pass without updates.
    """

    def __init__(
        self,
        api: Api,
        workloads: Informer[Workload],
        snapshots: Snapshots,
        kinds: ManagedKinds,
        unreadable: UnreadableSink | None = None,
        served: ServedNamespaces = EVERYWHERE,
    ) -> None:
        self._served = served
        self._api = api
        self._snapshots = snapshots
        self._kinds = kinds
        self._workloads = workloads
        self._checks = Informer(Watch(api, ADMISSION_CHECKS, AdmissionCheck), unreadable)
        self._policies = Informer(Watch(api, CHECKPOINT_POLICIES, PartialObject), unreadable)
        self._passing = WorkQueue("admission of a Workload", self._answer_pending_checks)
        self._declaring = WorkQueue("state of an AdmissionCheck", self._write_check_condition)
        # once, and not in `run`, which is called again when the adapter is restarted
        workloads.subscribe(self._on_workload_change)
        self._checks.subscribe(lambda before, now: self._enqueue_everything(now or before))
        self._policies.subscribe(lambda *_: self._enqueue_everything(*self._checks))

    @property
    def informers(self) -> tuple[Informer[Any], ...]:
        """All informers that `run` runs."""
        return (self._checks, self._policies)

    async def run(self) -> None:
        """Reconcile forever."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._checks.run(), name="AdmissionChecks")
            group.create_task(self._policies.run(), name="CheckpointPolicies of AdmissionChecks")
            for informer in (self._workloads, self._checks, self._policies):
                await informer.synced.wait()
            self._enqueue_everything(*self._checks)
            group.create_task(self._passing.run(), name="admission of Workloads")
            group.create_task(self._declaring.run(), name="state of AdmissionChecks")

    def policy_of(self, workload: Workload) -> str | None:
        """Return the policy name of the Workload's first check of ours, existing or not; None if it names none."""
        check = self._checks.get(min(self._our_checks_on(workload), default=""))
        return None if check is None or check.spec.parameters is None else check.spec.parameters.name

    def on_policies_changed(self, sink: Callable[[], None]) -> None:
        """Call `sink` when `policy_of` may have changed. It must not block."""
        self._checks.subscribe(lambda _before, _now: sink())

    def _on_workload_change(self, _before: Workload | None, now: Workload | None) -> None:
        if now is not None and pending_checks(now, self._our_check_names()):
            self._passing.add(f"{now.metadata.namespace}/{now.metadata.name}")

    def _enqueue_everything(self, *checks: AdmissionCheck | None) -> None:
        for check in checks:
            if check is not None and is_ours(check):
                self._declaring.add(check.metadata.name)
        for workload in self._workloads:
            self._on_workload_change(None, workload)

    def _our_check_names(self) -> tuple[str, ...]:
        return tuple(check.metadata.name for check in self._checks if is_ours(check))

    def _our_checks_on(self, workload: Workload) -> set[str]:
        return {one.name for one in workload.status.admission_checks} & set(self._our_check_names())

    def _policy_names(self) -> tuple[str, ...]:
        return tuple(policy.metadata.name for policy in self._policies)

    async def _write_check_condition(self, name: str) -> None:
        check = self._checks.get(name)
        if check is None or not is_ours(check):
            return
        body = build_active_condition(check, self._policy_names(), SERVER_TIME.now())
        if body is None:
            return
        try:
            await self._api.apply(ADMISSION_CHECKS, body, manager=MANAGER, subresource="status")
        except (AbsentError, ConflictError):
            return  # changed or deleted: the watch triggers another reconcile
        condition = body["status"]["conditions"][0]
        log.info("admission check declared", check=name, active=condition["status"], reason=condition["message"])

    async def _answer_pending_checks(self, key: str) -> None:
        namespace, _, name = key.partition("/")
        workload = self._workloads.get(name, namespace)
        if workload is None:
            return
        all_ours = self._our_checks_on(workload)
        for check in pending_checks(workload, all_ours):
            if check == min(all_ours):
                answer, message = self._decide_answer(workload, check)
            else:  # Kueue would end a Workload with conflicting updates of two of our checks
                answer, message = Answer(), f"AdmissionCheck {min(all_ours)!r} says what it continues from"
            if answer.obstacle is not None:
                await self._write_pending_status(workload, check, answer.obstacle)
            else:
                await self._write_ready_status(workload, check, answer, message)

    def _decide_answer(self, workload: Workload, check: str) -> tuple[Answer, str]:
        if (why := self._served.objection(workload.metadata.namespace)) is not None:
            return Answer(), f"starts as it would without this check: {why}"
        try:
            known = self._checks.get(check)
            policy = policy_of(known, self._policy_names()) if known else None
            answer = decide_check_answer(
                workload, policy, self._kinds, lambda one: any(self._snapshots_of(workload, (one,)))
            )
            return answer, answer.note or describe_snapshots(self._snapshots_of(workload, answer.ids))
        except Exception as error:  # a defect of ours must not block a Workload
            log.exception("workload passes unprotected", namespace=workload.metadata.namespace, check=check)
            return Answer(), f"starts unprotected: {error!r}"

    def _snapshots_of(self, workload: Workload, ids: Iterable[str]) -> Iterator[SnapshotRef]:
        for one in set(ids):
            yield from self._snapshots.snapshots_of(workload.metadata.namespace, one)

    async def _write_pending_status(self, workload: Workload, check: str, message: str) -> None:
        body = build_pending_status(workload, check, message, SERVER_TIME.now())
        if body is None:
            return
        try:
            await self._api.apply(WORKLOADS, body, manager=MANAGER, subresource="status")
        except (AbsentError, ConflictError):
            return  # as in `_write_ready_status`
        metadata = workload.metadata
        log.warning("workload waits", namespace=metadata.namespace, workload=metadata.name, check=check, reason=message)

    async def _write_ready_status(self, workload: Workload, check: str, answer: Answer, message: str) -> None:
        metadata = workload.metadata
        bound = log.bind(namespace=metadata.namespace, workload=metadata.name, check=check)
        try:
            try:
                await self._apply_ready_status(workload, check, answer, message)
            except RefusedByServerError as error:
                if not answer.pod_set_updates:
                    raise
                bound.exception("updates refused, the workload passes unprotected")
                await self._apply_ready_status(workload, check, Answer(), f"starts unprotected: {error.message}")
        except (AbsentError, ConflictError):
            return  # changed or deleted: the watch triggers another reconcile
        bound.info("workload passes", message=message)

    async def _apply_ready_status(self, workload: Workload, check: str, answer: Answer, message: str) -> None:
        body = build_ready_status(workload, check, answer, message, SERVER_TIME.now())
        await self._api.apply(WORKLOADS, body, manager=MANAGER, subresource="status")
