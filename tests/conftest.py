"""What all tests have in common."""

from __future__ import annotations

from hypothesis import settings

settings.register_profile("without deadlines", deadline=None)  # a busy machine is no defect
settings.load_profile("without deadlines")
