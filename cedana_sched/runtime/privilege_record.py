"""The record of a container's privileges, as JSON values: in a snapshot's manifest, and in a plan.

    {"version": 1, "container": {…}, "processes": {…}}      the fields are those of `runtime.privileges`

Sets are sorted lists. A field that is missing or of another type makes the record unreadable: no default is assumed.
Standard library only.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from cedana_sched.runtime.privileges import Capabilities, Confinement, Credentials, Device, Map, Privileges

VERSION = 1
"""Incremented when an older reader would underestimate the privileges in a record."""


def encode(privileges: Privileges) -> dict[str, Any]:
    """Encode to JSON values for `decode`."""
    container, processes = privileges
    return {
        "version": VERSION,
        "container": {name: _encoded(value) for name, value in container._asdict().items()},
        "processes": {name: _encoded(value) for name, value in processes._asdict().items()},
    }


def decode(content: Any) -> Privileges:
    """Decode the result of `encode`.

    Raises:
        ValueError: not a record, or one of a newer version.
    """
    try:
        version = _int(content["version"])
        container = Confinement(**_fields(content["container"], _OF_CONTAINER))
        processes = Credentials(**_fields(content["processes"], _OF_PROCESSES))
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise ValueError(f"this is no record of privileges: {error!r}") from error
    if version != VERSION:
        raise ValueError(f"privileges are recorded in version {version}, and this one supports {VERSION}")
    return Privileges(container, processes)


def _encoded(value: object) -> Any:
    if isinstance(value, Capabilities):
        return {name: sorted(names) for name, names in value._asdict().items()}
    if isinstance(value, frozenset):
        return sorted((list(one) if isinstance(one, Device) else one for one in value), key=repr)
    return [list(one) for one in value] if isinstance(value, tuple) else value


def _fields(content: dict[str, Any], kinds: Mapping[str, Callable[[Any], Any]]) -> dict[str, Any]:
    return {name: read(content[name]) for name, read in kinds.items()}


def _int(value: Any) -> int:
    if type(value) is not int:
        raise TypeError(f"{value!r} is no number")
    return value


def _bool(value: Any) -> bool:
    if type(value) is not bool:
        raise TypeError(f"{value!r} is neither true nor false")
    return value


def _str(value: Any) -> str:
    if type(value) is not str:
        raise TypeError(f"{value!r} is no text")
    return value


def _list(value: Any) -> list[Any]:
    if type(value) is not list:
        raise TypeError(f"{value!r} is no list")
    return value


def _ints(value: Any) -> frozenset[int]:
    return frozenset(map(_int, _list(value)))


def _strs(value: Any) -> frozenset[str]:
    return frozenset(map(_str, _list(value)))


def _capabilities(value: Any) -> Capabilities:
    return Capabilities(**{name: _strs(value[name]) for name in Capabilities._fields})


def _device(value: Any) -> Device:
    kind, major, minor, access = _list(value)
    return Device(_str(kind), _number(major), _number(minor), _str(access))


def _number(value: Any) -> int | None:
    return None if value is None else _int(value)


def _devices(value: Any) -> frozenset[Device]:
    return frozenset(map(_device, _list(value)))


def _map(value: Any) -> Map:
    return tuple((_int(inside), _int(outside), _int(count)) for inside, outside, count in _list(value))


_OF_CONTAINER: Mapping[str, Callable[[Any], Any]] = {
    "user": _int,
    "group": _int,
    "groups": _ints,
    "capabilities": _capabilities,
    "no_new_privileges": _bool,
    "seccomp": _str,
    "apparmor": _str,
    "selinux": _str,
    "masked_paths": _strs,
    "read_only_paths": _strs,
    "read_only_root": _bool,
    "read_only_mounts": _strs,
    "devices": _devices,
    "own_namespaces": _strs,
    "joined_namespaces": _strs,
    "user_map": _map,
    "group_map": _map,
}
_OF_PROCESSES: Mapping[str, Callable[[Any], Any]] = {
    "users": _ints,
    "groups": _ints,
    "supplementary_groups": _ints,
    "capabilities": _capabilities,
    "no_new_privileges": _bool,
    "filtered": _bool,
    "labels": _strs,
}
