"""Names of fields in our objects, by Kubernetes' API conventions: camelCase, `UID` in capitals."""

from __future__ import annotations

import re

from pydantic.alias_generators import to_camel


def api_name(field: str) -> str:
    """`podUID` of `pod_uid`, `creationTime` of `creation_time`; for pydantic's and for msgspec's models."""
    return re.sub(r"Uid(s?)$", r"UID\1", to_camel(field))
