"""Comparison of a container's confinement with its processes' credentials: a restore must not exceed what it allows.

CRIU restores processes with the users, capabilities and filters that they had, whatever the new container allows. So
before CRIU reads a byte, the record of the dump is compared with the new container: by the handler, which refuses, and
by the agent, which checks once more. Pure; standard library only. `runtime_handler.oci_confinement` and
`runtime_handler.process_credentials` read the values, `runtime_handler.privilege_record` encodes them.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from functools import partial
from typing import NamedTuple

from cedana_sched.runtime_handler.capability_names import KNOWN_CAPABILITIES

_SETUID, _SETGID = "CAP_SETUID", "CAP_SETGID"
_SHOWN = 6
_FIELDS_SHOWN = 3

Map = tuple[tuple[int, int, int], ...]
"""Of a user namespace: first id inside, first id outside, count (user_namespaces(7))."""


class Capabilities(NamedTuple):
    """The five sets, by names like CAP_KILL (capabilities(7))."""

    bounding: frozenset[str] = frozenset()
    effective: frozenset[str] = frozenset()
    inheritable: frozenset[str] = frozenset()
    permitted: frozenset[str] = frozenset()
    ambient: frozenset[str] = frozenset()


class Device(NamedTuple):
    """Permitted devices. `kind` is c, b, or a for both; a number that is None stands for any."""

    kind: str
    major: int | None
    minor: int | None
    access: str
    """Of r, w and m (mknod)."""


class Confinement(NamedTuple):
    """What a container's `config.json` allows. Ids are those inside its user namespace."""

    user: int = 0
    group: int = 0
    groups: frozenset[int] = frozenset()
    """Supplementary groups."""
    capabilities: Capabilities = Capabilities()
    no_new_privileges: bool = False
    seccomp: str = ""
    """Digest of the filter; empty if there is none. The next two likewise."""
    apparmor: str = ""
    selinux: str = ""
    masked_paths: frozenset[str] = frozenset()
    read_only_paths: frozenset[str] = frozenset()
    read_only_root: bool = False
    read_only_mounts: frozenset[str] = frozenset()
    """Their mount points. CRIU mounts the new container's volumes with the old container's options, writable or not."""
    devices: frozenset[Device] = frozenset()
    own_namespaces: frozenset[str] = frozenset()
    """Kinds of namespaces that are created for it."""
    joined_namespaces: frozenset[str] = frozenset()
    """Those of its pod, which may be the node's."""
    user_map: Map = ()
    """Of its user namespace; empty if it has none of its own."""
    group_map: Map = ()


class Credentials(NamedTuple):
    """Credentials of a container's processes, the union over all their threads."""

    users: frozenset[int] = frozenset()
    """Real, effective, saved, and filesystem ones."""
    groups: frozenset[int] = frozenset()
    """Likewise."""
    supplementary_groups: frozenset[int] = frozenset()
    capabilities: Capabilities = Capabilities()
    no_new_privileges: bool = True
    """Whether each of them has it."""
    filtered: bool = True
    """Whether each of them has a seccomp filter, or strict mode."""
    labels: frozenset[str] = frozenset()
    """Of AppArmor or SELinux; empty if there is none."""


class Privileges(NamedTuple):
    """Privileges of a container at its dump."""

    container: Confinement
    processes: Credentials


class Excess(NamedTuple):
    """One privilege that would exceed what the new container allows."""

    field: str
    old: str
    """In the snapshot."""
    new: str
    """In the new container."""

    def __str__(self) -> str:
        return f"{self.field}: {self.old} in the snapshot, {self.new} in the new container"


Difference = tuple[str, str] | None
"""The old and the new value, human-readable; None if the old one is not stronger."""


def excess_privileges(had: Privileges, may: Confinement) -> list[Excess]:
    """Return what a snapshot has and a container does not allow; empty if it may be restored there.

    The old container must have been confined at least as the new one is: CRIU restores more than the processes from it,
    mounts for one. And no process may have what no process of the new container could acquire: it may have acquired
    more than its container allowed.
    """
    of_container = ((field, check(had.container, may)) for field, check in _OF_CONTAINER)
    of_processes = ((field, check(had.processes, may)) for field, check in _OF_PROCESSES)
    return [Excess(field, *found) for field, found in (*of_container, *of_processes) if found is not None]


def restore_objection_to(had: Privileges | None, may: Confinement) -> str | None:
    """Return why a snapshot must not be restored in a container, with a remedy; None if it may.

    `had` is None for a snapshot of an earlier version, without a record: it may have had every privilege.
    """
    found = excess_privileges(had or _maximum_privileges(may), may)
    if not found:
        return None
    if had is None:
        return (
            "the snapshot does not say with which privileges it was taken, as those of earlier versions do not, so it "
            "continues in privileged containers only (start it from its beginning: its next snapshot will say it)"
        )
    more = f"; and {len(found) - _FIELDS_SHOWN} more" if len(found) > _FIELDS_SHOWN else ""
    return (
        f"it would have more privileges than its new container allows: {'; '.join(map(str, found[:_FIELDS_SHOWN]))}"
        f"{more} (give the pod the securityContext that the snapshot was taken with, or start it without the snapshot)"
    )


def _maximum_privileges(may: Confinement) -> Privileges:
    """Return the most that a snapshot can have; its namespaces, which CRIU checks, fit or fail."""
    every = frozenset(KNOWN_CAPABILITIES)
    capabilities = may.capabilities._replace(bounding=every, effective=every, permitted=every)
    container = Confinement(
        capabilities=capabilities,
        devices=frozenset({Device("a", None, None, "rwm")}),
        own_namespaces=may.own_namespaces,
        joined_namespaces=may.joined_namespaces,
    )
    processes = Credentials(
        users=frozenset({0}), capabilities=capabilities, no_new_privileges=False, filtered=False, labels=frozenset({""})
    )
    return Privileges(container, processes)


# --- what a container allows its processes


def _obtainable_capabilities(may: Confinement) -> frozenset[str]:
    """Return the capabilities that its processes can acquire (capabilities(7), "Transformation of capabilities").

    Programs with capabilities or the set-user-ID bit grant them unless NoNewPrivileges forbids it.
    """
    sets = may.capabilities
    if not may.no_new_privileges:
        return sets.bounding | sets.permitted | sets.ambient
    return sets.permitted | sets.ambient if may.user == 0 else sets.ambient


def _has_initial_capability(may: Confinement, capability: str) -> bool:
    return may.user == 0 and capability in may.capabilities.permitted


# --- the old container and the new one


def _user_difference(had: Confinement, may: Confinement) -> Difference:
    is_within = had.user == may.user or _has_initial_capability(may, _SETUID)
    return None if is_within else (str(had.user), str(may.user))


def _group_difference(had: Confinement, may: Confinement) -> Difference:
    is_within = had.group == may.group or _has_initial_capability(may, _SETGID)
    return None if is_within else (str(had.group), str(may.group))


def _groups_difference(had: Confinement, may: Confinement) -> Difference:
    beyond = had.groups - may.groups - {may.group}
    return (
        None
        if not beyond or _has_initial_capability(may, _SETGID)
        else (_values_text(beyond), _values_text(may.groups))
    )


def _capability_set_difference(name: str, had: Confinement, may: Confinement) -> Difference:
    allowed: frozenset[str] = getattr(may.capabilities, name)
    beyond: frozenset[str] = getattr(had.capabilities, name) - allowed
    return (_values_text(beyond), _values_text(allowed)) if beyond else None


def _no_new_privileges_difference(had: Confinement | Credentials, may: Confinement) -> Difference:
    return ("no", "yes") if may.no_new_privileges and not had.no_new_privileges else None


def _profile_difference(name: str, had: Confinement, may: Confinement) -> Difference:
    """Compare two filters or profiles, whose strength has no order: only an equal one is allowed, or none."""
    old, new = getattr(had, name), getattr(may, name)
    return (old or "none", new) if new and new != old else None


def _masked_paths_difference(had: Confinement, may: Confinement) -> Difference:
    open_ones = may.masked_paths - had.masked_paths
    return (f"{_values_text(open_ones)} open", "masked") if open_ones else None


def _read_only_paths_difference(had: Confinement, may: Confinement) -> Difference:
    writable = may.read_only_paths - had.read_only_paths - had.masked_paths
    return (f"{_values_text(writable)} writable", "read-only") if writable else None


def _read_only_root_difference(had: Confinement, may: Confinement) -> Difference:
    return ("no", "yes") if may.read_only_root and not had.read_only_root else None


def _read_only_mounts_difference(had: Confinement, may: Confinement) -> Difference:
    writable = may.read_only_mounts - had.read_only_mounts
    return (f"{_values_text(writable)} writable", "read-only") if writable else None


def _devices_difference(had: Confinement, may: Confinement) -> Difference:
    beyond = [one for one in had.devices if not any(_is_device_covered(allowed, one) for allowed in may.devices)]
    return (_values_text(map(_device_text, beyond)), _values_text(map(_device_text, may.devices))) if beyond else None


def _is_device_covered(allowed: Device, one: Device) -> bool:
    return (
        allowed.kind in ("a", one.kind)
        and allowed.major in (None, one.major)
        and allowed.minor in (None, one.minor)
        and set(one.access) <= set(allowed.access)
    )


def _device_text(one: Device) -> str:
    major, minor = ("*" if number is None else number for number in (one.major, one.minor))
    return f"{one.kind} {major}:{minor} {one.access}"


def _namespaces_difference(had: Confinement, may: Confinement) -> Difference:
    shared = may.own_namespaces - had.own_namespaces
    without = may.joined_namespaces - had.own_namespaces - had.joined_namespaces
    return (f"{_values_text(shared | without)} of others", "its own, or its pod's") if shared | without else None


def _user_namespace_difference(had: Confinement, may: Confinement) -> Difference:
    old, new = (had.user_map, had.group_map), (may.user_map, may.group_map)
    return None if old == new else (_id_maps_text(*old), _id_maps_text(*new))


def _id_maps_text(users: Map, groups: Map) -> str:
    if not users and not groups:
        return "the node's"
    return ", ".join(f"{inside}-{inside + count - 1} as {outside}" for inside, outside, count in users + groups)


# --- the processes and the new container


def _process_users_difference(had: Credentials, may: Confinement) -> Difference:
    beyond = had.users - {may.user}
    is_within = not may.no_new_privileges or _SETUID in _obtainable_capabilities(may)
    return None if not beyond or is_within else (_values_text(beyond), str(may.user))


def _process_groups_difference(had: Credentials, may: Confinement) -> Difference:
    beyond = had.groups - {may.group} - may.groups
    is_within = not may.no_new_privileges or _SETGID in _obtainable_capabilities(may)
    return None if not beyond or is_within else (_values_text(beyond), str(may.group))


def _process_supplementary_groups_difference(had: Credentials, may: Confinement) -> Difference:
    allowed = may.groups | {may.group}
    beyond = had.supplementary_groups - allowed
    return (
        None
        if not beyond or _SETGID in _obtainable_capabilities(may)
        else (_values_text(beyond), _values_text(allowed))
    )


def _process_capability_set_difference(name: str, had: Credentials, may: Confinement) -> Difference:
    own: frozenset[str] = getattr(may.capabilities, name) if name in ("bounding", "inheritable") else frozenset()
    allowed = own if name == "bounding" else own | _obtainable_capabilities(may)
    beyond: frozenset[str] = getattr(had.capabilities, name) - allowed
    return (_values_text(beyond), _values_text(allowed)) if beyond else None


def _process_seccomp_difference(had: Credentials, may: Confinement) -> Difference:
    return ("none", may.seccomp) if may.seccomp and not had.filtered else None


def _process_apparmor_difference(had: Credentials, may: Confinement) -> Difference:
    """Compare AppArmor profiles; a profile may transition into its child profiles."""
    profile = may.apparmor
    beyond = {label for label in had.labels if label != profile and not label.startswith(f"{profile}//")}
    return (_labels_text(beyond), profile) if profile and beyond else None


def _process_selinux_difference(had: Credentials, may: Confinement) -> Difference:
    beyond = had.labels - {may.selinux}
    return (_labels_text(beyond), may.selinux) if may.selinux and beyond else None


def _labels_text(labels: Collection[str]) -> str:
    return _values_text([label or "none" for label in labels])


def _values_text(values: Collection[object] | map[str]) -> str:
    shown = sorted(map(str, values))
    more = f" and {len(shown) - _SHOWN} more" if len(shown) > _SHOWN else ""
    return (", ".join(shown[:_SHOWN]) or "none") + more


_OF_CONTAINER: tuple[tuple[str, Callable[[Confinement, Confinement], Difference]], ...] = (
    ("user", _user_difference),
    ("group", _group_difference),
    ("supplementary groups", _groups_difference),
    *((f"{name} capabilities", partial(_capability_set_difference, name)) for name in Capabilities._fields),
    ("no new privileges", _no_new_privileges_difference),
    ("seccomp filter", partial(_profile_difference, "seccomp")),
    ("AppArmor profile", partial(_profile_difference, "apparmor")),
    ("SELinux label", partial(_profile_difference, "selinux")),
    ("masked paths", _masked_paths_difference),
    ("read-only paths", _read_only_paths_difference),
    ("read-only root", _read_only_root_difference),
    ("read-only mounts", _read_only_mounts_difference),
    ("devices", _devices_difference),
    ("namespaces", _namespaces_difference),
    ("user namespace", _user_namespace_difference),
)
_OF_PROCESSES: tuple[tuple[str, Callable[[Credentials, Confinement], Difference]], ...] = (
    ("users of its processes", _process_users_difference),
    ("groups of its processes", _process_groups_difference),
    ("supplementary groups of its processes", _process_supplementary_groups_difference),
    *(
        (f"{name} capabilities of its processes", partial(_process_capability_set_difference, name))
        for name in Capabilities._fields
    ),
    ("no new privileges of its processes", _no_new_privileges_difference),
    ("seccomp filter of its processes", _process_seccomp_difference),
    ("AppArmor profile of its processes", _process_apparmor_difference),
    ("SELinux label of its processes", _process_selinux_difference),
)
