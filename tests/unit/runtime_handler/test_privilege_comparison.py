"""What a container allows and a snapshot has: nothing of it may be more than the new container allows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cedana_sched.runtime_handler.capability_names import KNOWN_CAPABILITIES
from cedana_sched.runtime_handler.privilege_comparison import (
    Capabilities,
    Confinement,
    Credentials,
    Device,
    Privileges,
    excess_privileges,
    restore_objection_to,
)
from cedana_sched.runtime_handler.privilege_record import decode, encode

DEFAULT = frozenset({"CAP_CHOWN", "CAP_KILL", "CAP_SETUID", "CAP_SETGID", "CAP_NET_BIND_SERVICE"})
HARDENED = Confinement(
    user=1000,
    group=1000,
    groups=frozenset({2000}),
    no_new_privileges=True,
    seccomp="sha256:1",
    apparmor="cri-containerd.apparmor.d",
    selinux="system_u:system_r:container_t:s0:c1,c2",
    masked_paths=frozenset({"/proc/kcore", "/proc/keys"}),
    read_only_paths=frozenset({"/proc/sys"}),
    read_only_root=True,
    read_only_mounts=frozenset({"/data", "/sys"}),
    own_namespaces=frozenset({"pid", "mount"}),
    joined_namespaces=frozenset({"network", "ipc"}),
    devices=frozenset({Device("c", 1, 3, "rwm")}),
)
ROOT = Confinement(capabilities=Capabilities(DEFAULT, DEFAULT, frozenset(), DEFAULT))
LABELLED = HARDENED._replace(selinux="")
"""A machine has one of the two modules."""


def of_first_process(container: Confinement) -> Credentials:
    """What the first process of a container has, as runc starts it."""
    sets = container.capabilities
    kept = sets.permitted if container.user == 0 else sets.ambient
    return Credentials(
        users=frozenset({container.user}),
        groups=frozenset({container.group}),
        supplementary_groups=container.groups,
        capabilities=Capabilities(sets.bounding, kept, sets.inheritable, kept, sets.ambient),
        no_new_privileges=container.no_new_privileges,
        filtered=bool(container.seccomp),
        labels=frozenset({container.apparmor or container.selinux}),
    )


def taken_in(container: Confinement) -> Privileges:
    return Privileges(container, of_first_process(container))


def fields(had: Privileges, may: Confinement) -> list[str]:
    return [one.field for one in excess_privileges(had, may)]


# --- a container and itself

numbers = st.integers(0, 2**32 - 1)
capabilities = st.frozensets(st.sampled_from(KNOWN_CAPABILITIES), max_size=6)
paths = st.frozensets(st.sampled_from(["/proc/kcore", "/proc/keys", "/proc/sys", "/sys/firmware"]))
devices = st.builds(
    Device, st.sampled_from("abc"), st.none() | st.integers(0, 300), st.none() | st.integers(0, 300),
    st.sampled_from(["r", "rw", "rwm"]),
)  # fmt: skip
namespaces = st.frozensets(st.sampled_from(["pid", "mount", "network", "ipc", "uts", "cgroup", "user"]))
maps = st.lists(st.tuples(numbers, numbers, numbers), max_size=2).map(tuple)


@st.composite
def sets(draw: st.DrawFn) -> Capabilities:
    """As the kernel has them: nothing is permitted beyond the bounding set, nothing ambient is not inheritable."""
    bounding = draw(capabilities)
    permitted = bounding & draw(capabilities)
    inheritable = bounding & draw(capabilities)
    return Capabilities(bounding, permitted, inheritable, permitted, permitted & inheritable)


@st.composite
def containers(draw: st.DrawFn) -> Confinement:
    module = draw(st.sampled_from(["", "apparmor", "selinux"]))
    return Confinement(
        user=draw(numbers),
        group=draw(numbers),
        groups=draw(st.frozensets(numbers, max_size=3)),
        capabilities=draw(sets()),
        no_new_privileges=draw(st.booleans()),
        seccomp=draw(st.sampled_from(["", "sha256:1", "sha256:2"])),
        apparmor="profile" if module == "apparmor" else "",
        selinux="a:b:c:s0" if module == "selinux" else "",
        masked_paths=draw(paths),
        read_only_paths=draw(paths),
        read_only_root=draw(st.booleans()),
        read_only_mounts=draw(paths),
        devices=draw(st.frozensets(devices, max_size=3)),
        own_namespaces=draw(namespaces),
        joined_namespaces=draw(namespaces),
        user_map=draw(maps),
        group_map=draw(maps),
    )


@given(containers())
def test_a_snapshot_continues_in_a_container_like_its_own(container: Confinement) -> None:
    assert excess_privileges(taken_in(container), container) == []
    assert restore_objection_to(taken_in(container), container) is None


@given(containers())
def test_a_record_is_read_as_it_was_written(container: Confinement) -> None:
    assert decode(encode(taken_in(container))) == taken_in(container)


# --- anything stronger

STRONGER: dict[str, dict[str, Any]] = {
    "user": {"user": 0},
    "group": {"group": 0},
    "supplementary groups": {"groups": frozenset({2000, 0})},
    "no new privileges": {"no_new_privileges": False},
    "seccomp filter": {"seccomp": ""},
    "AppArmor profile": {"apparmor": ""},
    "SELinux label": {"selinux": "system_u:system_r:spc_t:s0"},
    "masked paths": {"masked_paths": frozenset({"/proc/kcore"})},
    "read-only paths": {"read_only_paths": frozenset()},
    "read-only root": {"read_only_root": False},
    "read-only mounts": {"read_only_mounts": frozenset({"/sys"})},
    "devices": {"devices": frozenset({Device("a", None, None, "rwm")})},
    "namespaces": {"own_namespaces": frozenset({"mount"}), "joined_namespaces": frozenset({"pid", "network", "ipc"})},
    "user namespace": {"user_map": ((0, 100_000, 65_536),)},
    **{
        f"{name} capabilities": {"capabilities": Capabilities()._replace(**{name: frozenset({"CAP_SYS_ADMIN"})})}
        for name in Capabilities._fields
    },
}


@pytest.mark.parametrize(("field", "changes"), STRONGER.items(), ids=STRONGER)
def test_an_old_container_that_allowed_more_is_refused(field: str, changes: dict[str, Any]) -> None:
    had = Privileges(HARDENED._replace(**changes), of_first_process(LABELLED))
    assert fields(had, HARDENED)[0] == field


@given(containers(), st.sampled_from(sorted(STRONGER)), st.data())
def test_no_one_field_of_any_container_may_be_stronger(new: Confinement, field: str, data: st.DataObject) -> None:
    """But for the ids that whoever begins as root may take anyway."""
    new = new._replace(
        no_new_privileges=True, seccomp="sha256:1", apparmor="profile", selinux="",
        read_only_root=True, read_only_mounts=frozenset({"/data", "/sys"}),
        masked_paths=new.masked_paths | {"/proc/kcore"}, read_only_paths=new.read_only_paths | {"/proc/sys"},
        own_namespaces=frozenset({"pid"}), user=data.draw(st.integers(1, 2**32 - 1)), group=1000,
    )  # fmt: skip
    sets = new.capabilities
    stronger: dict[str, dict[str, Any]] = STRONGER | {
        "SELinux label": {"selinux": ""},
        "supplementary groups": {"groups": new.groups | {2**32}},
        "masked paths": {"masked_paths": new.masked_paths - {"/proc/kcore"}},
        "read-only paths": {"read_only_paths": frozenset(), "masked_paths": new.masked_paths - {"/proc/sys"}},
        "namespaces": {"own_namespaces": frozenset(), "joined_namespaces": frozenset({"pid"})},
        "user namespace": {"user_map": (*new.user_map, (0, 1, 1))},
        "devices": {"devices": frozenset({Device("a", None, None, "rwmx")})},
        **{
            f"{name} capabilities": {"capabilities": sets._replace(**{name: getattr(sets, name) | {"CAP_99"}})}
            for name in Capabilities._fields
        },
    }
    if field == "SELinux label":
        new = new._replace(selinux="a:b:c:s0", apparmor="")
    had = taken_in(new)._replace(container=new._replace(**stronger[field]))
    if field == "read-only paths":
        new = new._replace(masked_paths=new.masked_paths - {"/proc/sys"})
    assert fields(had, new) == [field]


OF_PROCESSES: dict[str, dict[str, Any]] = {
    "users of its processes": {"users": frozenset({1000, 0})},
    "groups of its processes": {"groups": frozenset({1000, 0})},
    "supplementary groups of its processes": {"supplementary_groups": frozenset({0})},
    "no new privileges of its processes": {"no_new_privileges": False},
    "seccomp filter of its processes": {"filtered": False},
    "AppArmor profile of its processes": {"labels": frozenset({"cri-containerd.apparmor.d", ""})},
    **{
        f"{name} capabilities of its processes": {
            "capabilities": Capabilities()._replace(**{name: frozenset({"CAP_NET_RAW"})})
        }
        for name in Capabilities._fields
    },
}


@pytest.mark.parametrize(("field", "changes"), OF_PROCESSES.items(), ids=OF_PROCESSES)
def test_processes_that_have_more_than_any_of_the_new_container_could_get_are_refused(
    field: str, changes: dict[str, Any]
) -> None:
    """However their container was confined: they may have come back into it by an earlier version."""
    had = taken_in(LABELLED)
    assert fields(had._replace(processes=had.processes._replace(**changes)), LABELLED) == [field]


def test_labels_of_selinux_are_compared_as_well() -> None:
    container = HARDENED._replace(apparmor="")
    had = taken_in(container)
    other = had.processes._replace(labels=frozenset({"system_u:system_r:spc_t:s0"}))
    assert fields(had._replace(processes=other), container) == ["SELinux label of its processes"]


@pytest.mark.parametrize(
    "changes",
    [
        {"users": frozenset({0, 999}), "groups": frozenset({0, 999}), "supplementary_groups": frozenset({5})},
        {"no_new_privileges": True, "filtered": True},
        {"capabilities": Capabilities()},
        {"labels": frozenset({"anything"})},
    ],
)
def test_processes_of_root_may_have_given_up_what_they_had(changes: dict[str, Any]) -> None:
    had = taken_in(ROOT)
    assert fields(had._replace(processes=had.processes._replace(**changes)), ROOT) == []


def test_programs_with_the_set_user_id_bit_give_what_they_give_where_nothing_forbids_it() -> None:
    sets = Capabilities(bounding=DEFAULT, inheritable=frozenset(), permitted=DEFAULT, effective=DEFAULT)
    container = Confinement(user=1000, group=1000, capabilities=sets)
    risen = Credentials(users=frozenset({1000, 0}), groups=frozenset({0}), capabilities=sets, no_new_privileges=False)
    assert fields(Privileges(container, risen), container) == []
    assert fields(Privileges(container, risen), container._replace(no_new_privileges=True)) == [
        "no new privileges", "users of its processes", "groups of its processes",
        "effective capabilities of its processes", "permitted capabilities of its processes",
        "no new privileges of its processes",
    ]  # fmt: skip


def test_a_profile_that_leads_into_others_is_the_same_one() -> None:
    had = taken_in(LABELLED)
    below = had.processes._replace(labels=frozenset({"cri-containerd.apparmor.d//helper"}))
    assert fields(had._replace(processes=below), LABELLED) == []


@pytest.mark.parametrize(
    ("had", "may", "is_covered"),
    [
        (Device("c", 1, 3, "rw"), Device("c", 1, 3, "rwm"), True),
        (Device("c", 1, 3, "rwm"), Device("c", 1, None, "rwm"), True),
        (Device("b", 8, 0, "r"), Device("a", None, None, "rwm"), True),
        (Device("c", 1, 3, "rwm"), Device("c", 1, 3, "rw"), False),
        (Device("c", 1, None, "r"), Device("c", 1, 3, "r"), False),
        (Device("b", 1, 3, "r"), Device("c", 1, 3, "r"), False),
        (Device("a", None, None, "r"), Device("c", None, None, "r"), False),
    ],
)
def test_devices_are_allowed_by_rules_that_cover_them(had: Device, may: Device, is_covered: bool) -> None:
    old, new = (HARDENED._replace(devices=frozenset({one})) for one in (had, may))
    assert (fields(Privileges(old, of_first_process(LABELLED)), new._replace(selinux="")) == []) == is_covered


# --- in words


def test_a_person_reads_which_field_and_what_helps() -> None:
    weaker = ROOT._replace(user=1000, no_new_privileges=True)
    assert restore_objection_to(taken_in(ROOT), weaker) == (
        "it would have more privileges than its new container allows: user: 0 in the snapshot, 1000 in the new "
        "container; no new privileges: no in the snapshot, yes in the new container; users of its processes: 0 in the "
        "snapshot, 1000 in the new container; and 3 more (give the pod the securityContext that the snapshot was taken "
        "with, or start it without the snapshot)"
    )


@dataclass
class _Target:
    container: Confinement
    is_refused: bool


EVERYTHING = frozenset(KNOWN_CAPABILITIES)
PRIVILEGED = Confinement(
    capabilities=Capabilities(EVERYTHING, EVERYTHING, frozenset(), EVERYTHING),
    devices=frozenset({Device("a", None, None, "rwm")}),
    own_namespaces=frozenset({"pid", "mount"}),
)


@pytest.mark.parametrize(
    "target",
    [
        _Target(PRIVILEGED, is_refused=False),
        _Target(PRIVILEGED._replace(masked_paths=frozenset({"/proc/kcore"})), is_refused=True),
        _Target(ROOT, is_refused=True),
        _Target(HARDENED, is_refused=True),
    ],
)
def test_a_snapshot_that_does_not_say_continues_where_everything_is_allowed(target: _Target) -> None:
    objection = restore_objection_to(None, target.container)
    assert (objection is not None) == target.is_refused
    assert objection is None or "does not say with which privileges it was taken" in objection


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("version",), 2),
        (("container", "user"), "0"),
        (("container", "user"), True),
        (("container", "no_new_privileges"), 1),
        (("container", "masked_paths"), "/proc/kcore"),
        (("container", "devices"), [["c", 1, 3]]),
        (("processes", "capabilities"), {}),
        (("processes", "labels"), [1]),
        (("processes",), None),
    ],
)
def test_what_is_no_record_is_not_guessed(path: tuple[str, ...], value: object) -> None:
    record = encode(taken_in(HARDENED))
    inner = record
    for name in path[:-1]:
        inner = inner[name]
    inner[path[-1]] = value
    with pytest.raises(ValueError, match=r"privileges"):
        decode(record)


@pytest.mark.parametrize("content", [None, [], {}, "x", {"version": 1}])
def test_nor_is_anything_else(content: object) -> None:
    with pytest.raises(ValueError, match="privileges"):
        decode(content)
