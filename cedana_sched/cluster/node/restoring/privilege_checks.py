"""Checks a snapshot's recorded privileges and images, before and after the runtime handler restores from it.

The handler compares a container's record before CRIU reads a byte (`runtime_handler.planned_create`), and the restored
processes before they run (`runtime_handler.restore_verification`). The agent compares the images before it writes
anything into the pod, because a running container does not name its image. And the agent compares the record once more
with the running container: the handler may be one that an earlier version has installed on the node.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any

import structlog

from cedana_sched.cluster.node.containers.bundles import Container
from cedana_sched.cluster.node.containers.containerd_host_paths import HostPaths
from cedana_sched.cluster.node.containers.privileges import IMAGES, PRIVILEGES, SERVICE_ACCOUNT, read_confinement
from cedana_sched.kube.builtin_kinds import Container as KubeContainer
from cedana_sched.kube.builtin_kinds import Pod
from cedana_sched.model.errors import RestoreError
from cedana_sched.runtime_handler import plan as plans
from cedana_sched.runtime_handler import privilege_record
from cedana_sched.runtime_handler.plan import COLD, ContainerResult, Plan
from cedana_sched.runtime_handler.privilege_comparison import Privileges, restore_objection_to

log = structlog.get_logger(__name__)


def recorded_privileges(restore_facts: Mapping[str, Any]) -> dict[str, Privileges]:
    """Return the records by container; a missing one was not recorded.

    Raises:
        RestoreError: a record cannot be decoded.
    """
    found = restore_facts.get(PRIVILEGES, {})
    try:
        return {name: privilege_record.decode(record) for name, record in found.items()}
    except (AttributeError, ValueError) as error:
        raise RestoreError(
            f"the snapshot's record of privileges cannot be read: {error}",
            remedy="continue it with the version that has taken it, or start the pod without the snapshot",
        ) from error


def refuse_other_images(restore_facts: Mapping[str, Any], names: Collection[str], pod: Pod) -> None:
    """Compare the images of a pod's containers before and now, as in the pod's spec.

    Containers that are not restored count as well: they can read what the others keep in their volumes. Init containers
    that complete before the others start can read nothing, for they do not run this time.

    Args:
        restore_facts: of the snapshot.
        names: of the containers to restore.
        pod: the new one.

    Raises:
        RestoreError: an image differs, or the snapshot does not record the old one.
    """
    known = restore_facts.get(IMAGES)
    before: Mapping[str, object] = known if isinstance(known, dict) else {}
    present = {entry.name: entry.image for entry in (*pod.spec.containers, *pod.spec.init_containers)}
    beside = [entry.name for entry in (*pod.spec.containers, *filter(is_sidecar, pod.spec.init_containers))]
    for name in dict.fromkeys((*names, *beside)):
        if name not in names and name not in before:
            raise RestoreError(
                f"container {name}: it was not in the pod when the snapshot was taken, and would see what the others "
                "have left in their volumes",
                remedy="take it out of the pod, allow other images in its CheckpointPolicy (imageMayChange), or start "
                "the pod without the snapshot",
            )
        if before.get(name) != present.get(name):
            raise RestoreError(
                f"container {name}: image: {before.get(name) or 'not recorded'} in the snapshot, {present.get(name)} "
                "in the new container",
                remedy="give the pod the image that it had, allow another one in its CheckpointPolicy "
                "(imageMayChange), or start it without the snapshot",
            )


def is_sidecar(entry: KubeContainer) -> bool:
    """Return whether an init container runs beside the others."""
    return entry.restart_policy == "Always"


def refuse_other_service_account(restore_facts: Mapping[str, Any], pod: Pod) -> None:
    """Compare the old and the new ServiceAccount.

    The right to use an id in a namespace does not always include the right to use an account.

    Raises:
        RestoreError: the ServiceAccount differs, or the snapshot does not record the old one.
    """
    before, now = restore_facts.get(SERVICE_ACCOUNT), pod.spec.service_account_name
    if before != now:
        raise RestoreError(
            f"ServiceAccount: {before or 'not recorded'} in the snapshot, {now} in the new pod",
            remedy="give the pod the ServiceAccount that it had, allow another one in its CheckpointPolicy "
            "(serviceAccountMayChange), or start it without the snapshot",
        )


def fail_overprivileged(
    folder: str, plan: Plan, results: Mapping[str, ContainerResult], running: Iterable[Container], paths: HostPaths
) -> dict[str, ContainerResult]:
    """Return the results, with restored containers that have more than they are now allowed changed to failures."""
    checked = dict(results)
    for container in running:
        result = checked.get(container.name)
        if result is None or not result.restored or not container.is_restored:
            continue
        try:
            why = restore_objection_to(plan.containers[container.name].privileges, read_confinement(container, paths))
        except FileNotFoundError:
            continue  # it has exited meanwhile
        if why is not None:
            log.error("a container was restored that should not have been", container=container.name, reason=why)
            checked[container.name] = ContainerResult(restored=False, why=why, cold=plan.fallback == COLD)
            plans.write_result(folder, container.name, checked[container.name])
    return checked
