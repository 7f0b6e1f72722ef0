"""The coordinator may write each ConfigMap that its log may need, and no others."""

from __future__ import annotations

import re
from pathlib import Path

from cedana_sched.cluster.coordinator.redo_log import LOG_NAME, SLOTS

_ROLE = Path(__file__).parents[3] / "manifests/chart/templates/coordinator/rbac.yaml"


def test_every_part_of_the_log_is_named_in_the_role() -> None:
    text = _ROLE.read_text()
    [(count, name)] = re.findall(r"range until (\d+) \}\}\n\s+- (\S+)-\{\{ \. \}\}", text)
    assert (int(count), name) == (SLOTS, LOG_NAME)
    assert f"- {LOG_NAME}\n" in text
