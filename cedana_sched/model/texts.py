"""Length limits for foreign text (of an agent, a pod, a scheduler) in records and objects."""

from __future__ import annotations

from typing import Final

LONGEST_TEXT: Final = 1_000
"""Characters of a failure, which a gang copies to each of its members. The log has the full text."""
_ELLIPSIS: Final = "…"


def truncate_text(text: str, longest: int = LONGEST_TEXT) -> str:
    """Truncate to valid JSON text; an ellipsis marks the cut.

    Args:
        text: of any length.
        longest: characters of the result, 1 or more.
    """
    if len(text) > longest:
        text = text[: longest - len(_ELLIPSIS)] + _ELLIPSIS
    return text if text.isascii() else text.encode(errors="replace").decode()


def printable_text(text: str) -> str:
    """Replace characters that would reach a terminal as anything but text, such as those of a process's name."""
    return text if text.isprintable() else "".join(one if one.isprintable() else "?" for one in text)
