"""Extracts from a container's `config.json` what it allows its processes (OCI runtime specification, 1.0).

Containerd writes that file. Standard library only.
"""

from __future__ import annotations

import hashlib
import json
import re
from typing import Any

from cedana_sched.runtime_handler.privilege_comparison import Capabilities, Confinement, Device, Map

_ONE_FOR_EACH_PROCESSOR = re.compile(r"/cpu\d+(?=/)")
_UNCONFINED = "unconfined"
_READ_ONLY = frozenset({"ro", "rro"})


def confinement_of(spec: dict[str, Any]) -> Confinement:
    """Return the confinement of a specification.

    Raises:
        ValueError: the specification is invalid.
    """
    try:
        return _parse_confinement(spec)
    except (AttributeError, KeyError, TypeError) as error:
        raise ValueError(f"the container's config.json cannot be understood: {error!r}") from error


def _parse_confinement(spec: dict[str, Any]) -> Confinement:
    process: dict[str, Any] = spec.get("process") or {}
    linux: dict[str, Any] = spec.get("linux") or {}
    user: dict[str, Any] = process.get("user") or {}
    sets: dict[str, Any] = process.get("capabilities") or {}
    profile = str(process.get("apparmorProfile") or "")
    namespaces = [(str(one["type"]), bool(one.get("path"))) for one in linux.get("namespaces") or ()]
    return Confinement(
        user=int(user.get("uid") or 0),
        group=int(user.get("gid") or 0),
        groups=frozenset(map(int, user.get("additionalGids") or ())),
        capabilities=Capabilities(*(frozenset(map(str, sets.get(name) or ())) for name in Capabilities._fields)),
        no_new_privileges=bool(process.get("noNewPrivileges")),
        seccomp=_seccomp_digest(linux["seccomp"]) if linux.get("seccomp") else "",
        apparmor="" if profile == _UNCONFINED else profile,
        selinux=str(process.get("selinuxLabel") or ""),
        masked_paths=_normalize_paths(linux.get("maskedPaths")),
        read_only_paths=_normalize_paths(linux.get("readonlyPaths")),
        read_only_root=bool((spec.get("root") or {}).get("readonly")),
        read_only_mounts=frozenset(
            str(one["destination"]) for one in spec.get("mounts") or () if _READ_ONLY & set(one.get("options") or ())
        ),
        devices=_allowed_devices((linux.get("resources") or {}).get("devices") or ()),
        own_namespaces=frozenset(kind for kind, is_joined in namespaces if not is_joined),
        joined_namespaces=frozenset(kind for kind, is_joined in namespaces if is_joined),
        user_map=_id_map(linux.get("uidMappings")),
        group_map=_id_map(linux.get("gidMappings")),
    )


def _seccomp_digest(seccomp: Any) -> str:
    """Return the digest of a seccomp filter's specification, independent of the order of its keys."""
    canonical = json.dumps(seccomp, sort_keys=True, separators=(",", ":"))
    return f"sha256:{hashlib.sha256(canonical.encode()).hexdigest()}"


def _normalize_paths(paths: list[str] | None) -> frozenset[str]:
    """Normalize paths: per-processor paths count once, because machines differ, and the kubelet masks existing ones."""
    return frozenset(_ONE_FOR_EACH_PROCESSOR.sub("/cpu*", path) for path in paths or ())


def _allowed_devices(rules: Any) -> frozenset[Device]:
    """Return the devices that the rules, applied in order, allow; the default is deny, except runc's own defaults."""
    allowed: set[Device] = set()
    for rule in rules:
        kind, access = str(rule.get("type") or "a"), str(rule.get("access") or "")
        one = Device(kind, _device_number(rule, "major"), _device_number(rule, "minor"), access)
        is_all = one.kind == "a" and one.major is None and one.minor is None
        if rule.get("allow"):
            allowed.add(one)
        elif is_all:
            allowed.clear()
        else:
            allowed.discard(one)
    return frozenset(allowed)


def _device_number(rule: dict[str, Any], key: str) -> int | None:
    """Return a number of a rule; missing and -1 mean any."""
    number = rule.get(key)
    return None if number is None or number < 0 else int(number)


def _id_map(entries: list[dict[str, int]] | None) -> Map:
    return tuple((int(one["containerID"]), int(one["hostID"]), int(one["size"])) for one in entries or ())
