"""Our webhook has pods wait that no Checkpoint of this cluster is about: after an exclusion they begin, too."""

from __future__ import annotations

import pytest

from cedana_sched.adapter.contract import Starting
from cedana_sched.model.objects import names
from tests.unit.cluster_coordinator.test_excluded_namespaces import EXCLUDED, _pod_reports, _reported, _returning


@pytest.mark.parametrize("said", [{names.CONTINUES: "true"}, {names.WANTED: "from-another-cluster/3@12"}])
async def test_who_waits_for_what_another_cluster_has_saved_is_told_how_to_begin(said: dict[str, str]) -> None:
    pod = _returning(names.RESTORE_CONTAINER, identifier="from-another-cluster")
    pod.metadata.annotations.update(said)
    assert [type(one) for one in await _reported(_pod_reports(EXCLUDED, pod).reports())] == [Starting]
