"""Whose turn it is to collect what, where agents have no keys of the bucket: a ConfigMap that the coordinator writes.

An agent gets credentials of the namespaces of its node's pods and orders. Garbage of the others is collected by whom
the coordinator gives a turn: one node, one namespace, some minutes, credentials with which nothing else can be done.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import msgspec
import structlog

from cedana_sched.kube.objects import Metadata
from cedana_sched.model.errors import UsageError
from cedana_sched.model.identity import validate_namespace

log = structlog.get_logger(__name__)

KEY: Final = "turns"
"""Of the ConfigMap's data."""
TURN_SECONDS: Final = 600.0
"""From when a turn is given until no credentials are given for it. A collection that has begun by then goes on."""


class CollectionTurn(msgspec.Struct, frozen=True):
    """One node's. `namespace` is as the store calls it, `until` in epoch seconds by the API server's clock."""

    node: str
    namespace: str
    until: float


class CollectionTurns(msgspec.Struct, frozen=True):
    """The ConfigMap."""

    metadata: Metadata
    data: dict[str, str] = {}

    def standing(self, now: float) -> tuple[CollectionTurn, ...]:
        """Those that are not over; none where what stands there cannot be read. `now` is as `until`."""
        text = self.data.get(KEY, "")
        if not text:
            return ()
        try:
            found = msgspec.json.decode(text, type=tuple[CollectionTurn, ...])
            return tuple(one for one in found if validate_namespace(one.namespace) and now < one.until)
        except (msgspec.DecodeError, UsageError) as error:
            log.warning("turns of collections cannot be read", configmap=self.metadata.name, problem=str(error))
            return ()


def written(turns: Iterable[CollectionTurn]) -> str:
    """As they stand in the ConfigMap."""
    return msgspec.json.encode(tuple(turns)).decode()
