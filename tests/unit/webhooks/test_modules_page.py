"""webhooks/README.md names every module of the webhooks, and no other."""

from __future__ import annotations

import re
from pathlib import Path

WEBHOOKS = Path(__file__).parents[3] / "webhooks"
PACKAGE = WEBHOOKS / "cedana_sched_webhooks"
TREE = (WEBHOOKS / "README.md").read_text().split("cedana_sched_webhooks/\n")[1].split("\n\n")[0]


def test_the_page_names_every_module() -> None:
    modules = {str(path.relative_to(PACKAGE)) for path in PACKAGE.rglob("*.py") if not path.name.startswith("__")}
    assert {"pod_admission.py", "holds/pod_eviction_hold.py"} <= modules
    assert set(re.findall(r"[\w/]+\.py", TREE)) == modules
