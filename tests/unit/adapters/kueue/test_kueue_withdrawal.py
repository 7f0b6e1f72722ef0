"""ClusterQueues go on without our AdmissionCheck, and keep everybody else's."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from cedana_sched.kube.client import Api, Object
from cedana_sched.kube.errors import AbsentError, ConflictError
from cedana_sched.kube.resources import Resource
from cedana_sched.model.objects import names
from cedana_sched_kueue.admission_check_removal import withdraw_checks
from cedana_sched_kueue.objects import ADMISSION_CHECKS

CHECKS = [
    {"metadata": {"name": "ours"}, "spec": {"controllerName": names.ADMISSION_CHECK_CONTROLLER}},
    {"metadata": {"name": "theirs"}, "spec": {"controllerName": "example.com/budget"}},
]


class Kueue(Api):
    """ClusterQueues by name; the first `conflicts` writes find them changed."""

    def __init__(self, conflicts: int = 0, **queues: list[Object] | None) -> None:
        self._conflicts = conflicts
        self.specs: dict[str, Object] = {
            name: {"cohortName": "lab"}
            | ({} if rules is None else {"admissionChecksStrategy": {"admissionChecks": rules}})
            for name, rules in queues.items()
        }

    async def list_all(
        self, resource: Resource, namespace: str | None = None, query: Mapping[str, str] | None = None, *, into: Any
    ) -> tuple[tuple[Any, ...], str]:
        queues = [{"metadata": {"name": name, "resourceVersion": "7"}, "spec": s} for name, s in self.specs.items()]
        bodies = CHECKS if resource == ADMISSION_CHECKS else queues
        return tuple(msgspec.convert(body, into) for body in bodies), "0"

    async def patch(
        self,
        resource: Resource,
        name: str,
        namespace: str | None,
        patch: Object | list[Object],
        *,
        subresource: str | None = None,
    ) -> None:
        assert isinstance(patch, dict)
        assert patch["metadata"] == {"resourceVersion": "7"}
        if self._conflicts:
            self._conflicts -= 1
            raise ConflictError("changed", status=409)
        strategy = patch["spec"]["admissionChecksStrategy"]
        self.specs[name].pop("admissionChecksStrategy")
        self.specs[name] |= {} if strategy is None else {"admissionChecksStrategy": strategy}


async def test_our_check_is_taken_out_and_nothing_else() -> None:
    theirs = {"name": "theirs", "onFlavors": ["a100"]}
    kueue = Kueue(conflicts=1, bio=[{"name": "ours"}], ml=[{"name": "ours"}, theirs], other=[theirs], plain=None)
    await withdraw_checks(kueue)
    kept = {"cohortName": "lab", "admissionChecksStrategy": {"admissionChecks": [theirs]}}
    assert kueue.specs == {"bio": {"cohortName": "lab"}, "ml": kept, "other": kept, "plain": {"cohortName": "lab"}}


async def test_without_kueue_there_is_nothing_to_do() -> None:
    class Gone(Api):
        def __init__(self) -> None: ...

        async def list_all(self, *_: Any, **__: Any) -> Any:
            raise AbsentError("no such kind", status=404)

    await withdraw_checks(Gone())
