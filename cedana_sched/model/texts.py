"""How much is kept of what others write: an agent, a pod, a scheduler. Records and objects have room for a sentence."""

from __future__ import annotations

from typing import Final

LONGEST_TEXT: Final = 1_000
"""Characters of a failure; a gang's is copied to each of its members. The log has the whole of it."""
_ELLIPSIS: Final = "…"


def cut(text: str, longest: int = LONGEST_TEXT) -> str:
    """Its beginning, as text that JSON can hold; an ellipsis stands for what is left out.

    Args:
        text: of any length.
        longest: characters of the result, 1 or more.
    """
    if len(text) > longest:
        text = text[: longest - len(_ELLIPSIS)] + _ELLIPSIS
    return text if text.isascii() else text.encode(errors="replace").decode()
