"""Whoever reads one of our kinds reads fields that the kind has: a name that is misspelt there is silently empty."""

from __future__ import annotations

import ast
import importlib
import inspect
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml
from msgspec.inspect import (
    DictType,
    ListType,
    Metadata,
    StructType,
    Type,
    UnionType,
    VarTupleType,
    type_info,
)

import cedana_sched.kube.resources as kinds
from cedana_sched.model.objects.names import GROUP

ROOT = Path(__file__).parents[3]
CRDS = ROOT / "manifests/chart/files/crds"
FOLDERS = (ROOT / "cedana_sched", ROOT / "webhooks/cedana_sched_webhooks", *ROOT.glob("adapters/*/cedana_sched_*"))
OURS = ("CHECKPOINTS", "CHECKPOINT_POLICIES", "CHECKPOINT_STORAGES", "PREEMPTION_HOLDS", "RESTORES")


def readings() -> Iterator[tuple[str, type[msgspec.Struct]]]:
    """Each call that names one of our kinds and a Struct: a watch, a list, a get."""
    for folder in FOLDERS:
        for path in sorted(folder.rglob("*.py")):
            source = path.read_text()
            if not any(name in source for name in OURS):
                continue
            module = importlib.import_module(".".join([folder.name, *path.relative_to(folder).with_suffix("").parts]))
            for call in ast.walk(ast.parse(source)):
                if isinstance(call, ast.Call):
                    words = [*call.args, *(one.value for one in call.keywords)]
                    named = [word.id for word in words if isinstance(word, ast.Name)]
                    for kind in set(named) & set(OURS):
                        structs = (getattr(module, name, None) for name in named)
                        yield from (
                            (kind, one) for one in structs if inspect.isclass(one) and issubclass(one, msgspec.Struct)
                        )


FOUND = sorted(set(readings()), key=lambda one: (one[0], one[1].__module__, one[1].__qualname__))
KINDS_OF = {struct: [kind for kind, one in FOUND if one is struct] for _, struct in FOUND}


def unknown(read: Type, schema: dict[str, Any], where: str) -> Iterator[str]:
    """Paths of fields that are read and not defined."""
    if isinstance(read, Metadata):
        read = read.type
    if isinstance(read, UnionType):
        for one in read.types:
            yield from unknown(one, schema, where)
    elif isinstance(read, ListType | VarTupleType):
        yield from unknown(read.item_type, schema.get("items", {}), f"{where}[]")
    elif isinstance(read, DictType) and isinstance(schema.get("additionalProperties"), dict):
        yield from unknown(read.value_type, schema["additionalProperties"], f"{where}{{}}")
    elif isinstance(read, StructType) and "properties" in schema:
        for field in read.fields:
            if field.encode_name in schema["properties"]:
                yield from unknown(field.type, schema["properties"][field.encode_name], f"{where}.{field.encode_name}")
            else:
                yield f"{where}.{field.encode_name}"


def schema_of(kind: str) -> dict[str, Any]:
    (version,) = yaml.safe_load((CRDS / f"{getattr(kinds, kind).plural}.{GROUP}.yaml").read_text())["spec"]["versions"]
    schema: dict[str, Any] = version["schema"]["openAPIV3Schema"]
    schema["properties"]["metadata"] = {}  # Kubernetes' own
    return schema


def test_readings_are_found() -> None:
    assert len(FOUND) >= 10
    assert {kind for kind, _ in FOUND} == set(OURS)


@pytest.mark.parametrize("struct", KINDS_OF, ids=lambda one: f"{one.__module__}.{one.__qualname__}")
def test_fields_that_are_read_are_defined(struct: type[msgspec.Struct]) -> None:
    """By one of the kinds that it reads: an agent reads Checkpoints and Restores alike."""
    undefined = [set(unknown(type_info(struct), schema_of(kind), "")) for kind in KINDS_OF[struct]]
    assert set.intersection(*undefined) == set()


class Status(msgspec.Struct):
    """As it was read once."""

    verdicts: dict[str, str] = {}


class Hold(msgspec.Struct):
    status: Status | None = None


def test_a_misspelt_field_is_found() -> None:
    assert list(unknown(type_info(Hold), schema_of("PREEMPTION_HOLDS"), "")) == [".status.verdicts"]
