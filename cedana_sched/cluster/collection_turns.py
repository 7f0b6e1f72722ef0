"""Turns to collect garbage if agents have no keys of the bucket: a ConfigMap that the coordinator writes.

An agent gets credentials for the namespaces of its node's pods and orders. Garbage of other namespaces is collected in
turns: one node, one namespace, some minutes, with credentials restricted to that.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import msgspec
import structlog

from cedana_sched.kube.builtin_kinds import Metadata
from cedana_sched.model.errors import UsageError
from cedana_sched.model.identity import validate_namespace

log = structlog.get_logger(__name__)

KEY: Final = "turns"
"""Key of the ConfigMap's data."""
TURN_SECONDS: Final = 600.0
"""Validity of a turn for requests of credentials. A collection in progress then continues."""


class CollectionTurn(msgspec.Struct, frozen=True):
    """A node's turn. `namespace` is its name in the store, `until` epoch seconds by the API server's clock."""

    node: str
    namespace: str
    until: float


class CollectionTurns(msgspec.Struct, frozen=True):
    """The ConfigMap."""

    metadata: Metadata
    data: dict[str, str] = {}

    def unexpired_turns(self, now: float) -> tuple[CollectionTurn, ...]:
        """Return unexpired turns; none if the content cannot be read. `now` has the unit of `until`."""
        text = self.data.get(KEY, "")
        if not text:
            return ()
        try:
            found = msgspec.json.decode(text, type=tuple[CollectionTurn, ...])
            return tuple(one for one in found if validate_namespace(one.namespace) and now < one.until)
        except (msgspec.DecodeError, UsageError) as error:
            log.warning("turns of collections cannot be read", configmap=self.metadata.name, error=str(error))
            return ()


def encode_turns(turns: Iterable[CollectionTurn]) -> str:
    """Encode turns for the ConfigMap."""
    return msgspec.json.encode(tuple(turns)).decode()
