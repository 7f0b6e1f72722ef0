"""An API server whose finalizers are removed at once, as `CheckpointFinalizer` does after a while."""

from __future__ import annotations

from cedana_sched.testing import FakeApi, Traffic
from cedana_sched.testing.store import Change


def purged_server(traffic: Traffic | None = None) -> FakeApi:
    server = FakeApi(traffic)

    def attend(change: Change) -> None:
        resource, namespace, name = change.key
        if change.now is not None and "deletionTimestamp" in change.now["metadata"]:
            server.remove(resource, name, namespace)

    server.store.subscribe(attend)
    return server
