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
    informer: Informer[T], resource: Resource, sink: UnreadableSink, read: Callable[[T], object]
) -> None:
    """Report each object with a mark that cannot be read to `sink`: once, until the problem is another one.

    `read` reads the mark of an object, and raises UsageError if it cannot be read.
    """

    def problem_of(one: T) -> str | None:
        try:
            read(one)
        except UsageError as error:
            return str(error)
        return None

    def on_change(before: T | None, now: T | None) -> None:
        if now is None or (problem := problem_of(now)) is None:
            return
        if before is not None and problem_of(before) == problem:
            return
        log.warning("mark cannot be read", kind=resource.kind, name=now.metadata.name, error=problem)
        sink(resource, Unreadable(now.metadata, problem))

    informer.subscribe(on_change)
