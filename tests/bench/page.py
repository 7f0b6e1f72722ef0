"""A page of which one part, between two marks, is written by a measurement."""

from __future__ import annotations

from pathlib import Path

_BEGIN, _END = "<!-- measured: begin -->", "<!-- measured: end -->"


def replace_measured(page: Path, text: str) -> None:
    """Put another measurement into a page."""
    before, _, rest = page.read_text().partition(_BEGIN)
    after = rest.partition(_END)[2]
    page.write_text(f"{before}{_BEGIN}\n{text}{_END}{after}")
