"""Each field of a CheckpointPolicy refuses bad values, and each refusal names the field, the value and a remedy."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, Final, get_args

import pytest
from pydantic import BaseModel

from cedana_sched.model.objects.checkpoint_policy import CheckpointPolicySpec
from cedana_sched_webhooks import validation
from tests.unit.webhooks.admission_builders import creation

SELECTOR_FIELDS: Final[dict[str, list[Any]]] = {
    "": ["app=md", ["app"]],
    "matchLabels": [["app"], {"a b": "c"}, {"-": "c"}],
    "matchLabels.app": ["-", "a b", "x" * 64, 7, None],
    "matchExpressions": ["app", {}],
    "matchExpressions.0.key": ["", "a b", "/x", None],
    "matchExpressions.0.operator": ["Equals", "in", None],
    "matchExpressions.0.values": ["b", None],
    "matchExpressions.0.values.0": ["-", 7],
}
NO_SECONDS: Final = [0, -1, "soon", None, 86_401, float("nan"), float("inf")]
NO_SWITCH: Final = ["perhaps", 7, None]
BAD: Final[dict[str, list[Any]]] = {
    "deadlineSeconds": NO_SECONDS,
    "restoreDeadlineSeconds": NO_SECONDS,
    "onCheckpointFailure": ["Retry", "evict", None],
    "onRestoreFailure": ["Retry", "coldstart", None],
    "onFinalDeletion": ["Keep", "save", True, None],
    "onNodeLoss": ["Rewind", "restore", 1, None],
    "onVolumeChange": ["Restore", "rewind", 1, None],
    "quickFailureThreshold": [0, 101, 1.5, "two", None],
    "quickFailureSeconds": NO_SECONDS,
    "imageMayChange": NO_SWITCH,
    "serviceAccountMayChange": NO_SWITCH,
    "intervalSeconds": [0, 0.5, -1, 30 * 86_400 + 1, "hourly", float("nan")],
    "maxFrozenPercent": [0, 0.05, 50.5, -1, "5%", None],
    "compression": ["gzip", "ZSTD", None],
    "retention": [3, "all", None],
    "retention.keepLast": [0, 10_001, "all", None],
    "retention.maxAgeSeconds": [0, -1, "1d"],
    "allowedNamespaces": ["All", ["lab"], {"from": "All", "names": ["lab"]}],
    "allowedNamespaces.from": ["Selector", "all", None],
    "allowedNamespaces.names": ["lab", None],
    "allowedNamespaces.names.0": ["*", "Lab", "-", "x" * 64, 7],
    "podsMayChoose": ["perhaps", 7],
    "podDefaults": ["none", None],
    "podDefaults.disableLibuvIoUring": NO_SWITCH,
    "podDefaults.seccompProfile": ["RuntimeDefault", {"type": "Localhost"}],
    "podDefaults.seccompProfile.type": ["Unconfined", "runtimeDefault", None],
    "podDefaults.seccompProfile.localhostProfile": ["../up", "/etc/x", "a//b", "", "x" * 254],
    **{
        f"{selector}{path and '.'}{path}": values
        for selector in ("podSelector", "namespaceSelector")
        for path, values in SELECTOR_FIELDS.items()
    },
}
"""Values that are no values of the field at this path of `spec`."""
BESIDE: Final[dict[str, Any]] = {
    "allowedNamespaces.names": {"from": "Names"},
    "allowedNamespaces.names.0": {"from": "Names"},
    "podDefaults.seccompProfile.localhostProfile": {"type": "Localhost"},
    **{
        f"{selector}.matchExpressions.0.{field}": {"key": "app", "operator": "In", "values": ["md"]}
        for selector in ("podSelector", "namespaceSelector")
        for field in ("key", "operator", "values", "values.0")
    },
}
"""Other fields of the object that has the field, without which that object would be refused anyway."""
CASES: Final = [
    pytest.param(path, value, id=f"{path}={value!r:.40}") for path, values in BAD.items() for value in values
]


def spec_with(path: str, value: object) -> Any:
    """A spec with a value at a path."""
    names = path.split(".")
    parents = len(names) - (2 if names[-1] == "0" else 1)
    built: Any = value
    for place in range(len(names) - 1, -1, -1):
        beside = BESIDE.get(path, {}) if place == parents else {}
        built = [built] if names[place] == "0" else {**beside, names[place]: built}
    return built


def fields_of(model: type[BaseModel], prefix: str = "") -> Iterator[str]:
    """Paths of all fields, with those of their own models."""
    for name, field in model.model_fields.items():
        path = f"{prefix}{field.alias or name}"
        yield path
        annotation: Any = field.annotation
        for one in (annotation, *get_args(annotation)):
            if isinstance(one, type) and issubclass(one, BaseModel):
                is_list = str(annotation).startswith("tuple")
                yield from fields_of(one, f"{path}.0." if is_list else f"{path}.")


def test_the_table_has_each_field() -> None:
    assert set(fields_of(CheckpointPolicySpec)) <= set(BAD)


@pytest.mark.parametrize(("path", "value"), CASES)
def test_bad_value_is_refused_with_field_value_and_remedy(path: str, value: object) -> None:
    body = {"metadata": {"name": "x"}, "spec": spec_with(path, value)}
    answer = validation.validate_write(creation(body), validation.checks_by_kind(86_400)["checkpointpolicies"])
    assert answer.refusal is not None
    assert (answer.refusal.code, answer.refusal.reason) == (422, "Invalid")
    said = re.fullmatch(
        r"spec\.(?P<field>\S+): (?P<value>.+?) (?:is|are) .+ \((?P<remedy>.{8,})\)", answer.refusal.message, re.DOTALL
    )
    assert said is not None, answer.refusal.message
    assert said["field"].startswith(path) or path.startswith(said["field"]), answer.refusal.message
    assert said["value"] in repr(spec_with(path, value)) or repr(value)[:20] in said["value"], answer.refusal.message
