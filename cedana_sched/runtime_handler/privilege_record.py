"""The record of a container's privileges, as JSON values: in a snapshot's manifest, and in a plan.

    {"version": 1, "container": {…}, "processes": {…}}      the fields are those of
    `runtime_handler.privilege_comparison`

Sets are sorted lists. A field that is missing or of another type makes the record unreadable: no default is assumed.
Standard library only.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from cedana_sched.runtime_handler.json_records import (
    require_integer,
    require_list,
    require_text,
    require_true_or_false,
)
from cedana_sched.runtime_handler.privilege_comparison import (
    Capabilities,
    Confinement,
    Credentials,
    Device,
    Map,
    Privileges,
)

VERSION = 1
"""Incremented when an older reader would underestimate the privileges in a record."""


def encode(privileges: Privileges) -> dict[str, Any]:
    """Encode to JSON values for `decode`."""
    container, processes = privileges
    return {
        "version": VERSION,
        "container": {name: _encode_value(value) for name, value in container._asdict().items()},
        "processes": {name: _encode_value(value) for name, value in processes._asdict().items()},
    }


def decode(content: Any) -> Privileges:
    """Decode the result of `encode`.

    Raises:
        ValueError: not a record, or one of a newer version.
    """
    try:
        version = require_integer(content["version"])
        container = Confinement(**_decode_fields(content["container"], _OF_CONTAINER))
        processes = Credentials(**_decode_fields(content["processes"], _OF_PROCESSES))
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise ValueError(f"this is no record of privileges: {error!r}") from error
    if version != VERSION:
        raise ValueError(f"privileges are recorded in version {version}, and this one supports {VERSION}")
    return Privileges(container, processes)


def _encode_value(value: object) -> Any:
    if isinstance(value, Capabilities):
        return {name: sorted(names) for name, names in value._asdict().items()}
    if isinstance(value, frozenset):
        return sorted((list(one) if isinstance(one, Device) else one for one in value), key=repr)
    return [list(one) for one in value] if isinstance(value, tuple) else value


def _decode_fields(content: dict[str, Any], kinds: Mapping[str, Callable[[Any], Any]]) -> dict[str, Any]:
    return {name: read(content[name]) for name, read in kinds.items()}


def _decode_int_set(value: Any) -> frozenset[int]:
    return frozenset(map(require_integer, require_list(value)))


def _decode_str_set(value: Any) -> frozenset[str]:
    return frozenset(map(require_text, require_list(value)))


def _decode_capabilities(value: Any) -> Capabilities:
    return Capabilities(**{name: _decode_str_set(value[name]) for name in Capabilities._fields})


def _decode_device(value: Any) -> Device:
    kind, major, minor, access = require_list(value)
    return Device(require_text(kind), _decode_optional_int(major), _decode_optional_int(minor), require_text(access))


def _decode_optional_int(value: Any) -> int | None:
    return None if value is None else require_integer(value)


def _decode_devices(value: Any) -> frozenset[Device]:
    return frozenset(map(_decode_device, require_list(value)))


def _decode_id_map(value: Any) -> Map:
    return tuple(
        (require_integer(inside), require_integer(outside), require_integer(count))
        for inside, outside, count in require_list(value)
    )


_OF_CONTAINER: Mapping[str, Callable[[Any], Any]] = {
    "user": require_integer,
    "group": require_integer,
    "groups": _decode_int_set,
    "capabilities": _decode_capabilities,
    "no_new_privileges": require_true_or_false,
    "seccomp": require_text,
    "apparmor": require_text,
    "selinux": require_text,
    "masked_paths": _decode_str_set,
    "read_only_paths": _decode_str_set,
    "read_only_root": require_true_or_false,
    "read_only_mounts": _decode_str_set,
    "devices": _decode_devices,
    "own_namespaces": _decode_str_set,
    "joined_namespaces": _decode_str_set,
    "user_map": _decode_id_map,
    "group_map": _decode_id_map,
}
_OF_PROCESSES: Mapping[str, Callable[[Any], Any]] = {
    "users": _decode_int_set,
    "groups": _decode_int_set,
    "supplementary_groups": _decode_int_set,
    "capabilities": _decode_capabilities,
    "no_new_privileges": require_true_or_false,
    "filtered": require_true_or_false,
    "labels": _decode_str_set,
}
