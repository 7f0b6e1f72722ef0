"""Labels and annotations that an admin writes by hand, and that the API server does not validate.

One that cannot be read has no effect. Without an Event on its object nothing would show that.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, TypeVar

import structlog

from cedana_sched.kube.builtin_kinds import Metadata
from cedana_sched.kube.resources import Resource
from cedana_sched.kube.response_decoding import Unreadable, UnreadableSink
from cedana_sched.kube.watching import Informer
from cedana_sched.model.errors import UsageError

log = structlog.get_logger(__name__)


class _WithMetadata(Protocol):
    @property
    def metadata(self) -> Metadata: ...


T = TypeVar("T", bound=_WithMetadata)


def report_mark_problems(
    informer: Informer[T], resource: Resource, sink: UnreadableSink, error_of: Callable[[T], UsageError | None]
) -> None:
    """Report each object with a mark that cannot be read to `sink`: once, until the problem is another one."""

    def on_change(before: T | None, now: T | None) -> None:
        if now is None or (error := error_of(now)) is None:
            return
        if before is not None and str(error_of(before)) == str(error):
            return
        log.warning("mark cannot be read", kind=resource.kind, name=now.metadata.name, error=str(error))
        sink(resource, Unreadable(now.metadata, str(error)))

    informer.subscribe(on_change)
