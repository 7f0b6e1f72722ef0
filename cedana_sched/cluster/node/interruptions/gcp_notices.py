"""Notices of GCP for the node's own instance: its metadata server holds a request until a value changes.

Source: Compute Engine documentation, "Preemptible VM instances", "Query metadata server for maintenance event notices",
"Wait for change".
"""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Final
from urllib.parse import urlencode

from cedana_sched.cluster.node.interruptions.metadata_server import (
    REQUEST_SECONDS,
    MetadataAnswer,
    MetadataError,
    MetadataServer,
)
from cedana_sched.cluster.node.interruptions.notice_watch import NoticeWatch, Now
from cedana_sched.model.objects.node_interruption import InterruptionKind, InterruptionSource, NodeInterruption

PREEMPTED_PATH: Final = "/computeMetadata/v1/instance/preempted"
MAINTENANCE_PATH: Final = "/computeMetadata/v1/instance/maintenance-event"
FLAVOR_HEADER: Final = "Metadata-Flavor"
FLAVOR: Final = {FLAVOR_HEADER: "Google"}
WAIT_SECONDS: Final = 60
"""How long the server holds a request without a change."""
PREEMPTION_NOTICE: Final = timedelta(seconds=30)
"""After the notice, the instance is stopped within this time."""

_NO_ETAG: Final = "NONE"
"""No value has this etag: the server answers at once, with the current one. GCP's guest agent uses it likewise."""


class WatchedValue:
    """One value of the instance's metadata; each read but the first waits for another value.

    Args:
        server: the metadata server.
        path: of the value.
        now: the current time.
    """

    def __init__(self, server: MetadataServer, path: str, now: Now) -> None:
        self._server = server
        self._path = path
        self._now = now
        self._etag = _NO_ETAG
        self._value: str | None = None
        self._since = now()

    async def read(self) -> tuple[str, datetime]:
        """Return the value, and when it was first read: at first the current one, later once it has changed.

        After `WAIT_SECONDS` without a change the same value is returned.

        Raises:
            MetadataError: there is no answer, or it is none of GCP.
        """
        query = urlencode({"wait_for_change": "true", "timeout_sec": WAIT_SECONDS, "last_etag": self._etag})
        self._etag, before = _NO_ETAG, self._etag  # after a failure the value may have changed
        seconds = REQUEST_SECONDS + (WAIT_SECONDS if before != _NO_ETAG else 0)
        answer = await self._server.request(f"{self._path}?{query}", FLAVOR, seconds=seconds)
        require_google(answer)
        self._etag = answer.headers.get("ETag", "")
        if not self._etag:  # without it each request would be answered at once
            raise MetadataError(f"{answer.url} answers without an etag")
        value = answer.text()
        if value != self._value:
            self._value, self._since = value, self._now()
        return value, self._since


def require_google(answer: MetadataAnswer) -> None:
    """Raise MetadataError unless GCP's metadata server has answered with a value."""
    answer.require(200)
    if answer.headers.get(FLAVOR_HEADER) != FLAVOR[FLAVOR_HEADER]:
        raise MetadataError(f"{answer.url} answers without {FLAVOR_HEADER}: it is no metadata server of GCP")


async def prove_gcp(server: MetadataServer) -> None:
    """Return if the server is GCP's.

    Raises:
        MetadataError: it is not.
    """
    require_google(await server.request(PREEMPTED_PATH, FLAVOR))


def gcp_watches(server: MetadataServer, now: Now) -> tuple[NoticeWatch, ...]:
    """Return what to watch of an instance.

    Args:
        server: the metadata server.
        now: the current time.
    """
    preempted, maintenance = (WatchedValue(server, path, now) for path in (PREEMPTED_PATH, MAINTENANCE_PATH))

    async def read_preemption() -> NodeInterruption | None:
        return parse_preempted(*await preempted.read())

    async def read_maintenance() -> NodeInterruption | None:
        return parse_maintenance_event(*await maintenance.read())

    return (
        NoticeWatch("preemption", read_preemption, poll_seconds=0),
        NoticeWatch("maintenance event", read_maintenance, poll_seconds=0),
    )


def parse_preempted(value: str, since: datetime) -> NodeInterruption | None:
    """Return the notice of a value of `PREEMPTED_PATH`, first read at that time.

    Raises:
        MetadataError: the value is not what GCP documents.
    """
    match value:
        case "TRUE":
            ends_at = since + PREEMPTION_NOTICE
            return NodeInterruption.from_times(InterruptionSource.GCP, InterruptionKind.TERMINATION, ends_at, since)
        case "FALSE":
            return None
        case _:
            raise MetadataError(f"{PREEMPTED_PATH} is neither TRUE nor FALSE: {value[:64]!r}")


def parse_maintenance_event(value: str, since: datetime) -> NodeInterruption | None:
    """Return the notice of a value of `MAINTENANCE_PATH`, as above; a live migration loses nothing, and is none.

    Raises:
        MetadataError: the value is not what GCP documents.
    """
    match value:
        case "TERMINATE_ON_HOST_MAINTENANCE":
            return NodeInterruption.from_times(InterruptionSource.GCP, InterruptionKind.MAINTENANCE, None, since)
        case "NONE" | "MIGRATE_ON_HOST_MAINTENANCE":
            return None
        case _:
            raise MetadataError(f"{MAINTENANCE_PATH} is not what GCP documents: {value[:64]!r}")
