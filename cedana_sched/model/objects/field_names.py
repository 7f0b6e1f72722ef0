"""Field names by Kubernetes' API conventions: camelCase, `UID` in capitals."""

from __future__ import annotations

import re

from pydantic.alias_generators import to_camel


def api_name(field: str) -> str:
    """Convert `pod_uid` to `podUID`, `creation_time` to `creationTime`; for pydantic and msgspec models."""
    return re.sub(r"Uid(s?)$", r"UID\1", to_camel(field))
