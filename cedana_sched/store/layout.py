"""Keys of objects below the store's root. Each namespace is a folder, and shares no object with another one.

cedana-sched-store                                                  in folders: marks a store, and names it
v1/<namespace>/packs/<writer>-<number>                              concatenated chunks
               snapshots/<id>/<index>/<container>/<generation>.manifest            the commit
                                                  <generation>.<writer>.manifest   without conditional create
                                                  <generation>.<writer>.claim      the same
                                                  <generation>.removed             tombstone: the number is not reused
               pages/<id>/<index>/<container>/<generation>-<writer>                page fingerprints
               keys/<data key>                                     a data key, wrapped; in sealed namespaces
               intents/<writer>                                    a live writer: its heartbeat
               condemned/<pack>                                    a pack that the next collections may delete
               references                                          the packs that manifests name, for collections
               collector                                           the node that collects, and the last collection
               probe/<any>                                         trials, for nodes restricted to the namespace
"""

from __future__ import annotations

import re
from typing import Annotated, NamedTuple

from msgspec import Meta

from cedana_sched.model.errors import UsageError
from cedana_sched.model.identity import Identity, SnapshotRef, read_index

ROOT = "v1"
_DATA_KEY = re.compile(r"[0-9a-f]{32}")
_FILE = re.compile(r"(\d{10})(?:\.([0-9a-f]{32}))?\.(manifest|claim|removed)")


class GenerationFile(NamedTuple):
    """A parsed file name in a snapshots folder; `writer` is None under conditional create."""

    identity: Identity
    generation: int
    writer: str | None
    kind: str

    @property
    def ref(self) -> SnapshotRef:
        """The file's generation."""
        return SnapshotRef(self.identity, self.generation)


def namespace_folder(namespace: str) -> str:
    return f"{ROOT}/{namespace}"


def packs_folder(namespace: str) -> str:
    return f"{ROOT}/{namespace}/packs"


def pack_key(namespace: str, pack: str) -> str:
    return f"{packs_folder(namespace)}/{pack}"


_SHORTEST_PACK = len(f"{0:032x}-000001")
_LONGEST_PACK = _SHORTEST_PACK + 6
"""From a writer's millionth pack on, the number has one more digit."""
PackName = Annotated[str, Meta(min_length=_SHORTEST_PACK, max_length=_LONGEST_PACK)]
"""Decoded characters: shorter strings take many times their file's size in memory."""
LONGEST_KEY = 1024
"""Of an object; S3 allows no longer key."""


def may_be_pack_name(name: str) -> bool:
    """Return whether the name has the length of a pack's name."""
    return _SHORTEST_PACK <= len(name) <= _LONGEST_PACK


def pack_writer(pack: str) -> str:
    """Return the writer of the pack of this name."""
    return pack.partition("-")[0]


def data_keys_folder(namespace: str) -> str:
    return f"{ROOT}/{namespace}/keys"


def data_key_key(namespace: str, data_key: str) -> str:
    return f"{data_keys_folder(namespace)}/{data_key}"


def is_data_key_name(word: str) -> bool:
    """Return whether this is a valid name of a data key."""
    return _DATA_KEY.fullmatch(word) is not None


def intents_folder(namespace: str) -> str:
    return f"{ROOT}/{namespace}/intents"


def condemned_folder(namespace: str) -> str:
    return f"{ROOT}/{namespace}/condemned"


def references_key(namespace: str) -> str:
    return f"{ROOT}/{namespace}/references"


def collector_key(namespace: str) -> str:
    return f"{ROOT}/{namespace}/collector"


def pages_folder(namespace: str) -> str:
    return f"{ROOT}/{namespace}/pages"


def pages_key(ref: SnapshotRef, writer: str) -> str:
    one = ref.identity
    folder = f"{pages_folder(one.namespace)}/{one.id}/{one.index}/{one.container}"
    return f"{folder}/{ref.generation:010d}-{writer}"


def pages_writer(key: str) -> str:
    """Return the writer of the page fingerprints under this key."""
    return key.rpartition("-")[2]


def snapshots_folder(namespace: str, id_: str | None = None) -> str:
    folder = f"{ROOT}/{namespace}/snapshots"
    return f"{folder}/{id_}" if id_ else folder


def identity_folder(identity: Identity) -> str:
    return f"{snapshots_folder(identity.namespace, identity.id)}/{identity.index}/{identity.container}"


def manifest_key(ref: SnapshotRef, writer: str | None = None) -> str:
    return _generation_key(ref, writer, "manifest")


def claim_key(ref: SnapshotRef, writer: str) -> str:
    return _generation_key(ref, writer, "claim")


def removed_key(ref: SnapshotRef) -> str:
    return _generation_key(ref, None, "removed")


def _generation_key(ref: SnapshotRef, writer: str | None, kind: str) -> str:
    middle = f".{writer}" if writer else ""
    return f"{identity_folder(ref.identity)}/{ref.generation:010d}{middle}.{kind}"


def parse_generation_key(key: str) -> GenerationFile | None:
    """Parse a key below a snapshots folder; None for a foreign object."""
    parts = key.split("/")
    match = _FILE.fullmatch(parts[-1])
    if len(parts) != 7 or not match:
        return None
    try:
        identity = Identity(parts[1], parts[3], read_index("index", parts[4]), parts[5])
    except UsageError:
        return None
    return GenerationFile(identity, int(match[1]), match[2], match[3])
