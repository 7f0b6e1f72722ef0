"""Generates the CustomResourceDefinitions from the models in `cedana_sched/model/objects`.

`make docs` writes the files; `make lint` and the tests compare them (`--check`). The chart includes the files
unchanged, and `kubectl apply --server-side -f manifests/chart/files/crds` installs them without the chart.
Descriptions are the models' docstrings.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path

import yaml
from pydantic import BaseModel

from cedana_sched.kube.resources import (
    CHECKPOINT_POLICIES,
    CHECKPOINT_STORAGES,
    CHECKPOINTS,
    PREEMPTION_HOLDS,
    RESTORES,
    Resource,
)
from cedana_sched.model.objects.checkpoint import CheckpointSpec, CheckpointStatus
from cedana_sched.model.objects.checkpoint_policy import CheckpointPolicySpec
from cedana_sched.model.objects.checkpoint_storage import CheckpointStorageSpec, CheckpointStorageStatus
from cedana_sched.model.objects.names import CATEGORY, GROUP, VERSION
from cedana_sched.model.objects.preemption_hold import PreemptionHoldSpec, PreemptionHoldStatus
from cedana_sched.model.objects.restore import RestoreSpec, RestoreStatus
from cedana_sched.model.policy import LONGEST_RECORD_SECONDS
from tools.structural_schema import Schema, structural

ROOT = Path(__file__).resolve().parents[1]
FOLDER = ROOT / "manifests/chart/files/crds"

_IMMUTABLE = ("self == oldSelf", "is never changed: make another object")
_LONGEST = f"duration('{LONGEST_RECORD_SECONDS}s')"
_BOUNDED = (
    f"!has(self.status) || !has(self.status.deadline) || self.status.deadline <= self.spec.creationTime + {_LONGEST}",
    "status.deadline is later than any policy allows",
)
"""Bound on the deadline of a hold, for any writer."""
_ONE_PLACE = ("has(self.s3) != has(self.posix)", "give exactly one of s3 and posix")
_TLS = (
    "!has(self.s3) || !has(self.s3.endpoint) || self.s3.allowHttp || self.s3.endpoint.startsWith('https://')",
    "s3.endpoint must begin with https://; set s3.allowHttp if plain HTTP is meant",
)


@dataclass(frozen=True)
class Column:
    """A printer column of `kubectl get`; a wide column is shown only with `-o wide`."""

    name: str
    path: str
    type: str = "string"
    wide: bool = False


@dataclass(frozen=True)
class Kind:
    """Metadata of a kind beyond its models: short name, description, printer columns, and rules over several fields."""

    resource: Resource
    short: str
    what: str
    spec: type[BaseModel]
    status: type[BaseModel] | None
    columns: tuple[Column, ...]
    rules: tuple[tuple[str, str], ...] = ()
    selectable: tuple[str, ...] = ()
    whole: tuple[tuple[str, str], ...] = ()
    """Validation rules over spec and status together."""

    @property
    def name(self) -> str:
        return f"{self.resource.plural}.{GROUP}"


_AGE = Column("Age", ".metadata.creationTimestamp", "date")

KINDS = (
    Kind(
        CHECKPOINTS, "cckpt", "One generation of one pod, in the making or made.", CheckpointSpec, CheckpointStatus,
        (
            Column("ID", ".spec.identity.id"),
            Column("Index", ".spec.identity.index", "integer"),
            Column("Gen", ".status.snapshot.generation", "integer"),
            Column("Phase", ".status.phase"),
            Column("Read", ".status.readSize"),
            Column("Stored", ".status.storedSize"),
            _AGE,
            Column("Step", ".status.step", wide=True),
            Column("Pod", ".spec.podRef.name", wide=True),
            Column("Node", ".spec.podRef.nodeName", wide=True),
            Column("Adapter", ".spec.adapter", wide=True),
            Column("Reason", ".spec.reason", wide=True),
            Column("Message", ".status.message", wide=True),
        ),
        (_IMMUTABLE,),
        (".spec.podRef.nodeName", ".status.phase", ".status.step"),
        (_BOUNDED,),
    ),
    Kind(
        PREEMPTION_HOLDS, "phold", "One eviction that waits for the checkpoints of its victims.",
        PreemptionHoldSpec, PreemptionHoldStatus,
        (
            Column("Held", ".spec.heldObjectRef.name"),
            Column("Adapter", ".spec.adapter"),
            Column("Step", ".status.step"),
            Column("Deadline", ".status.deadline"),
            _AGE,
            Column("Preemptor", ".spec.preemptor", wide=True),
            Column("Reason", ".spec.reason", wide=True),
            Column("Released", ".status.releaseTime", "date", wide=True),
        ),
        (_IMMUTABLE,),
        (".spec.adapter", ".status.step"),
        (_BOUNDED,),
    ),
    Kind(
        RESTORES, "crst", "One return of a pod: from a snapshot, or cold and why.", RestoreSpec, RestoreStatus,
        (
            Column("ID", ".spec.identity.id"),
            Column("Index", ".spec.identity.index", "integer"),
            Column("Gen", ".status.snapshot.generation", "integer"),
            Column("Pod", ".spec.podRef.name"),
            Column("Step", ".status.step"),
            Column("Cold", ".status.cold", "boolean"),
            _AGE,
            Column("Node", ".spec.podRef.nodeName", wide=True),
            Column("Message", ".status.message", wide=True),
        ),
        (_IMMUTABLE,),
        (".spec.podRef.nodeName", ".status.step"),
    ),
    Kind(
        CHECKPOINT_POLICIES, "cpol", "What an admin decides for a queue or a workload.",
        CheckpointPolicySpec, None,
        (
            Column("Deadline", ".spec.deadlineSeconds", "number"),
            Column("On Failure", ".spec.onCheckpointFailure"),
            Column("On Restore Failure", ".spec.onRestoreFailure"),
            Column("Keep", ".spec.retention.keepLast", "integer"),
            _AGE,
            Column("Restore Deadline", ".spec.restoreDeadlineSeconds", "number", wide=True),
            Column("Compression", ".spec.compression", wide=True),
        ),
    ),
    Kind(
        CHECKPOINT_STORAGES, "cstore", "Where snapshots go, and whether that place can be used.",
        CheckpointStorageSpec, CheckpointStorageStatus,
        (
            Column("Bucket", ".spec.s3.bucket"),
            Column("Path", ".spec.posix.path"),
            Column("Ready", ".status.conditions[?(@.type=='Ready')].status"),
            Column("Last Probe", ".status.lastProbeTime", "date"),
            _AGE,
            Column("Endpoint", ".spec.s3.endpoint", wide=True),
            Column("Prefix", ".spec.s3.prefix", wide=True),
            Column("Message", ".status.conditions[?(@.type=='Ready')].message", wide=True),
        ),
        (_ONE_PLACE, _TLS),
    ),
)  # fmt: skip


def definition(kind: Kind) -> Schema:
    """Return the CustomResourceDefinition of a kind."""
    resource = kind.resource
    version: Schema = {
        "name": VERSION,
        "served": True,
        "storage": True,
        "schema": {"openAPIV3Schema": _root(kind)},
        "additionalPrinterColumns": [_column(column) for column in kind.columns],
    }
    if kind.selectable:
        version["selectableFields"] = [{"jsonPath": path} for path in kind.selectable]
    if kind.status:
        version["subresources"] = {"status": {}}
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {
            "name": kind.name,
            "labels": {"app.kubernetes.io/name": "cedana-sched", "app.kubernetes.io/part-of": "cedana-sched"},
        },
        "spec": {
            "group": GROUP,
            "names": {
                "kind": resource.kind,
                "listKind": f"{resource.kind}List",
                "plural": resource.plural,
                "singular": resource.kind.lower(),
                "shortNames": [kind.short],
                "categories": [CATEGORY],
            },
            "scope": "Namespaced" if resource.namespaced else "Cluster",
            "versions": [version],
        },
    }


def _column(column: Column) -> Schema:
    written = {"name": column.name, "type": column.type, "jsonPath": column.path}
    return written | ({"priority": 1} if column.wide else {})


def _root(kind: Kind) -> Schema:
    spec = structural(kind.spec)
    if kind.rules:
        spec["x-kubernetes-validations"] = _validations(kind.rules)
    elif "required" not in spec:
        spec["default"] = {}
    properties: Schema = {
        "apiVersion": {"type": "string"},
        "kind": {"type": "string"},
        "metadata": {"type": "object"},
        "spec": spec,
    }
    if kind.status:
        properties["status"] = structural(kind.status, with_defaults=False)
        properties["status"].pop("required", None)  # several components write their parts in any order
    root: Schema = {"description": kind.what, "type": "object", "required": ["spec"], "properties": properties}
    return root | ({"x-kubernetes-validations": _validations(kind.whole)} if kind.whole else {})


def _validations(rules: tuple[tuple[str, str], ...]) -> list[Schema]:
    return [{"rule": rule, "message": message} for rule, message in rules]


def written(kind: Kind) -> str:
    """Return the text of a kind's file."""
    head = (
        f"# Made from cedana_sched/model/objects by tools/{Path(__file__).name}: change the models, run 'make docs'.\n"
    )
    return head + yaml.safe_dump(definition(kind), sort_keys=False, width=120, allow_unicode=True)


def files(folder: Path = FOLDER) -> dict[Path, str]:
    """Return every file's path and expected text."""
    return {folder / f"{kind.name}.yaml": written(kind) for kind in KINDS}


def stale(folder: Path = FOLDER) -> list[Path]:
    """Return files that are missing, differ, or should not exist."""
    expected = files(folder)
    changed = [path for path, text in expected.items() if not path.exists() or path.read_text() != text]
    return changed + sorted(set(folder.glob("*.yaml")) - set(expected))


def main(arguments: list[str]) -> int:
    found = stale()
    if "--check" in arguments:
        for path in found:
            print(f"{path.relative_to(ROOT)} is out of date: run 'make docs'", file=sys.stderr)
        return 1 if found else 0
    expected = files()
    for path in found:
        if path in expected:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(expected[path])
        else:
            path.unlink()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
