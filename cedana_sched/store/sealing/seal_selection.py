"""Selection of the seal for writes, and opening of manifests.

    keys   writes_unsealed   what is written   what is read
    no     -                 unsealed          unsealed
    yes    no                sealed            sealed; with `accepts_unsealed` unsealed as well
    yes    yes               unsealed          both

Keys are the wrapping keys of a `KeyProvider`.
"""

from __future__ import annotations

from collections.abc import Collection

from cedana_sched.model.errors import IntegrityError, SealedError, UnsealedError
from cedana_sched.model.identity import SnapshotRef
from cedana_sched.model.manifest import Manifest
from cedana_sched.store import layout, manifest_format
from cedana_sched.store.backend import Backend, Buffer
from cedana_sched.store.sealing import sealed_manifest_format
from cedana_sched.store.sealing.data_keys import DataKey, DataKeys, has_data_keys
from cedana_sched.store.sealing.key_provider import KeyProvider
from cedana_sched.store.sealing.seal import NO_SEAL, NamespaceSeal, Seal

_FIELD = "keyFile"
_GIVE = "give the file that it was sealed with: --key-file, or keyFile of the storage"


class SealSelection:
    """Seals of one store. Thread-safe.

    Args:
        backend: holds the wrapped data keys.
        provider: wraps and unwraps them; None: there are no keys.
        accepts_unsealed: read unsealed snapshots, too. Any client that can write to the store can then forge snapshots.
        writes_unsealed: write unsealed for now, for readers that have no keys; read both kinds.
    """

    def __init__(
        self,
        backend: Backend,
        provider: KeyProvider | None = None,
        *,
        accepts_unsealed: bool = False,
        writes_unsealed: bool = False,
    ) -> None:
        self._backend = backend
        self._keys = DataKeys(backend, provider) if provider is not None else None
        self._writes_unsealed = writes_unsealed
        self._accepts_unsealed = accepts_unsealed or writes_unsealed or provider is None

    def for_writing(self, namespace: str) -> Seal:
        """Return the seal of a new snapshot in a namespace.

        Raises:
            SealedError: the namespace has data keys, and their wrapping key is not available.
        """
        if self._keys is not None:
            return NO_SEAL if self._writes_unsealed else NamespaceSeal(self._keys.for_writing(namespace))
        if has_data_keys(self._backend, namespace):
            sentence = f"{_FIELD}: none is given, and namespace {namespace} of {self._backend.description} is sealed"
            raise SealedError(sentence, remedy=_GIVE)
        return NO_SEAL

    def require_keys(self, namespaces: Collection[str]) -> None:
        """Check the keys before writes to these namespaces: with keys, even empty ones are sealed from now on.

        Raises:
            SealedError: there are no keys, and any namespace is sealed; or keys, and not those of one of these.
        """
        for namespace in self._backend.folder_names(layout.ROOT) if self._keys is None else namespaces:
            self.for_writing(namespace)

    def seal_of(self, manifest: Manifest) -> Seal:
        """Return the seal of the chunks that an opened manifest names.

        Raises:
            SealedError: the wrapping key is not available.
        """
        if not manifest.data_key:
            return NO_SEAL
        return NamespaceSeal(self._data_key_of(manifest.ref, manifest.data_key))

    def seal_manifest(self, seal: Seal, ref: SnapshotRef, plain: bytes) -> bytes:
        """Return the file of a manifest, for a snapshot written under `seal`. Needs no wrapping key.

        Raises:
            IntegrityError: the data key was erased during the dump: the snapshot would be unreadable.
        """
        if not isinstance(seal, NamespaceSeal):
            return plain
        if self._backend.stat(layout.data_key_key(ref.identity.namespace, seal.key.name)) is None:
            sentence = f"data key {seal.key.name} of namespace {ref.identity.namespace} was erased during the dump"
            raise IntegrityError(sentence, remedy="take the snapshot again")
        return sealed_manifest_format.seal_manifest(seal.key, ref, plain)

    def rewrap(self, namespace: str) -> int:
        """Rewrap, with the newest wrapping key, data keys wrapped by an older one; return how many.

        Raises:
            SealedError: a wrapping key is not available.
        """
        if self._keys is None:
            raise SealedError(f"{_FIELD}: none is given, and nothing can be wrapped without", remedy=_GIVE)
        return self._keys.rewrap(namespace)

    def head_length(self, head: Buffer) -> int:
        """Return the bytes of a manifest's file that `open_head` needs; `head` is its beginning."""
        return (
            sealed_manifest_format.sealed_head_length(head)
            if sealed_manifest_format.is_sealed(head)
            else manifest_format.head_length(head)
        )

    def open_head(self, ref: SnapshotRef, head: Buffer) -> Buffer:
        """Open the head of a manifest's file, for `format.decode_summary`.

        Raises:
            SealedError: the file is sealed, and the wrapping key is not available.
            UnsealedError: the file is not sealed, and unsealed ones are refused.
            IntegrityError: its seal is broken.
        """
        if not sealed_manifest_format.is_sealed(head):
            return self._require_unsealed_accepted(ref, head)
        return sealed_manifest_format.open_head(
            self._data_key_of(ref, sealed_manifest_format.read_preamble(head).data_key), ref, head
        )

    def file_length(self, ref: SnapshotRef, head: Buffer) -> int:
        """Return the size of a manifest's file, from its opened head; raises like `open_head`."""
        self.open_head(ref, head)
        return (
            sealed_manifest_format.sealed_file_length(head)
            if sealed_manifest_format.is_sealed(head)
            else manifest_format.manifest_file_length(head)
        )

    def open_manifest(self, ref: SnapshotRef, data: Buffer) -> Buffer:
        """Open a whole manifest's file, for `format.decode_manifest`; raises like `open_head`."""
        if not sealed_manifest_format.is_sealed(data):
            return self._require_unsealed_accepted(ref, data)
        return sealed_manifest_format.open_manifest(
            self._data_key_of(ref, sealed_manifest_format.read_preamble(data).data_key), ref, data
        )

    def _data_key_of(self, ref: SnapshotRef, data_key: str) -> DataKey:
        if self._keys is None:
            raise SealedError(f"{_FIELD}: none is given, and snapshot {ref} is sealed", remedy=_GIVE)
        return self._keys.find_data_key(ref.identity.namespace, data_key)

    def _require_unsealed_accepted(self, ref: SnapshotRef, data: Buffer) -> Buffer:
        manifest_format.require_manifest(data)  # reports damage as damage, not as an unsealed snapshot
        if not self._accepts_unsealed:
            sentence = f"snapshot {ref} is not sealed, and {_FIELD} says that all are: any writer may have forged it"
            remedy = "remove it; if it is from before the store was sealed, acceptUnsealed reads such snapshots"
            raise UnsealedError(sentence, remedy=remedy)
        return data
