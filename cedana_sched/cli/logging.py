"""Sends log lines to stderr: lines for a person on a terminal, JSON elsewhere. stdout is for data alone."""

from __future__ import annotations

import sys
from typing import Any


def log_to_stderr() -> None:
    """Configure structlog; commands that open a store or run the engine call it once, before anything else."""
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
    """Looks up `sys.stderr` when a logger is first used, so that tests that replace it see the lines."""

    def __call__(self, *_: Any) -> Any:
        import structlog

        return structlog.PrintLogger(sys.stderr)
