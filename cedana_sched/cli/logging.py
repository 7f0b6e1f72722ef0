"""Logging to stderr: readable lines on a terminal, JSON elsewhere. stdout is for data only."""

from __future__ import annotations

import sys
from typing import Any


def log_to_stderr() -> None:
    """Configure structlog; must precede the first log line."""
    import structlog

    processors: list[Any] = [
        structlog.contextvars.merge_contextvars,
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
    ]
    if sys.stderr.isatty():
        processors.append(structlog.dev.ConsoleRenderer())
    else:
        processors += [structlog.processors.format_exc_info, structlog.processors.JSONRenderer()]
    structlog.configure(processors=processors, logger_factory=_StderrLoggerFactory())


class _StderrLoggerFactory:
    """A logger factory that resolves `sys.stderr` at the first use of a logger, because tests replace it."""

    def __call__(self, *_: Any) -> Any:
        import structlog

        return structlog.PrintLogger(sys.stderr)
