"""Adapters' persistent state beyond what their schedulers publish: one ConfigMap each, fenced like the journal."""

from __future__ import annotations

import asyncio
import base64

import msgspec
import structlog

from cedana_sched.kube.builtin_kinds import Metadata
from cedana_sched.kube.client import Api, Object
from cedana_sched.kube.errors import AbsentError, AlreadyExistsError, ApiError, ConflictError
from cedana_sched.kube.resources import CONFIG_MAPS
from cedana_sched.model.errors import RetryableError
from cedana_sched.model.objects import names
from cedana_sched.retrying import AWAITED, Backoff

log = structlog.get_logger(__name__)

PREFIX = "cedana-sched-notes-"
"""Prefix of the adapter's name."""
_KEY = "notes"


class _NotesConfigMap(msgspec.Struct, frozen=True, rename="camel"):
    metadata: Metadata
    binary_data: dict[str, str] = {}


class ConfigMapNotes:
    """Implements `adapter.cluster_contract.Notes`. `writer` is the unique name of this process.

    A read takes over: no earlier reader can write afterwards.
    """

    def __init__(self, api: Api, namespace: str, adapter: str, writer: str) -> None:
        self._api = api
        self._namespace = namespace
        self._name = f"{PREFIX}{adapter}"
        self._writer = writer
        self._version: str | None = None

    async def read(self) -> bytes | None:
        """See `adapter.cluster_contract.Notes`."""
        backoff = Backoff(AWAITED)
        while True:
            try:
                found = await self._api.find(CONFIG_MAPS, self._name, self._namespace, into=_NotesConfigMap)
                if found is None:
                    made = await self._api.create(CONFIG_MAPS, self._config_map_body({}, None), into=_NotesConfigMap)
                else:
                    body = self._config_map_body(found.binary_data, found.metadata.resource_version)
                    made = await self._api.update(CONFIG_MAPS, body, into=_NotesConfigMap)
            except (ConflictError, AlreadyExistsError):  # the previous writer has just written: its content counts
                await asyncio.sleep(backoff.next_pause())
                continue
            except ApiError as error:
                raise self._retryable_error(error) from error
            self._version = made.metadata.resource_version
            return _decode_notes(made)

    async def write(self, notes: bytes) -> None:
        """See `adapter.cluster_contract.Notes`."""
        if self._version is None:
            await self.read()
        body = self._config_map_body({_KEY: base64.b64encode(notes).decode()}, self._version)
        try:
            made = await self._api.update(CONFIG_MAPS, body, into=_NotesConfigMap)
        except AbsentError as error:  # the ConfigMap was deleted; the next write recreates it
            self._version = None
            raise self._retryable_error(error) from error
        except ConflictError as error:
            await self._adopt_own_version(error)
            raise self._retryable_error(error) from error
        except ApiError as error:
            raise self._retryable_error(error) from error
        self._version = made.metadata.resource_version

    async def _adopt_own_version(self, conflict: ConflictError) -> None:
        """Adopt the version of a conflicting write if it is ours and only its response was lost."""
        try:
            found = await self._api.get(CONFIG_MAPS, self._name, self._namespace, into=_NotesConfigMap)
        except ApiError as error:
            raise self._retryable_error(error) from conflict
        if found.metadata.annotations.get(names.WRITER) == self._writer:
            self._version = found.metadata.resource_version

    def _retryable_error(self, error: ApiError) -> RetryableError:
        return RetryableError(f"notes of {self._name} not kept: {error.message}", remedy="it is tried again")

    def _config_map_body(self, data: dict[str, str], version: str | None) -> Object:
        metadata: Object = {
            "name": self._name,
            "namespace": self._namespace,
            "annotations": {names.WRITER: self._writer},
        }
        if version:
            metadata["resourceVersion"] = version
        return {"metadata": metadata, "binaryData": data}


def _decode_notes(kept: _NotesConfigMap) -> bytes | None:
    text = kept.binary_data.get(_KEY)
    if text is None:
        return None
    try:
        return base64.b64decode(text, validate=True)
    except ValueError as error:
        log.warning("notes are damaged; the adapter begins without", name=kept.metadata.name, error=str(error))
        return None
