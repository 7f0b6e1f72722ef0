"""The diagrams in the documentation are those of the tables: `print(mermaid(CHECKPOINT))` makes a new one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from cedana_sched.coordinator.core.transitions import CHECKPOINT, HOLD, RESTORE, mermaid

ARCHITECTURE = Path(__file__).parents[4] / "docs" / "architecture.md"


@pytest.mark.parametrize("table", [CHECKPOINT, HOLD, RESTORE], ids=["checkpoint", "hold", "restore"])
def test_the_documented_diagram_is_the_table(table: Any) -> None:
    assert mermaid(table) in ARCHITECTURE.read_text()
