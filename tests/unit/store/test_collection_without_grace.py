"""`gc --grace 0s` beside a commit of the same second."""

from __future__ import annotations

from cedana_sched.model.identity import Identity, SnapshotRef
from cedana_sched.store import layout
from cedana_sched.store.catalogue import Catalogue
from cedana_sched.store.format import encode_manifest
from cedana_sched.store.garbage import collect_garbage
from tests.servers.simulated import SimulatedBackend
from tests.unit.store.test_garbage_races import manifest_of


def test_a_manifest_that_is_committed_while_garbage_is_collected_stays() -> None:
    backend = SimulatedBackend()  # its clock stands still, as S3's dates do within a second
    ref = SnapshotRef(Identity("team-a", "job"), 1)
    listed: list[str] = []
    plain = backend.list

    def listing(prefix: str):  # noqa: ANN202
        listed.append(prefix)
        if prefix == layout.pages_folder("team-a"):  # after the generations were read
            backend.put(layout.manifest_key(ref), encode_manifest(manifest_of(ref, "a" * 32, (), backend.time)))
        yield from plain(prefix)  # as S3 and folders do: not before it is asked for

    backend.list = listing  # type: ignore[method-assign]
    collect_garbage(backend, Catalogue(backend), "team-a", grace_seconds=0.0)
    assert layout.manifest_key(ref) in backend.objects, "a committed snapshot was removed"
