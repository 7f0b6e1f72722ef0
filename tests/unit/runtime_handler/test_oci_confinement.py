"""A container's `config.json`, as containerd writes it, read for what it allows."""

from __future__ import annotations

from typing import Any

import pytest

from cedana_sched.runtime_handler.oci_confinement import confinement_of
from cedana_sched.runtime_handler.privilege_comparison import Capabilities, Confinement, Device

NULL = {"allow": True, "type": "c", "major": 1, "minor": 3, "access": "rwm"}
FULL: dict[str, Any] = {
    "process": {
        "user": {"uid": 1000, "gid": 1001, "additionalGids": [2000]},
        "capabilities": {"bounding": ["CAP_KILL"], "effective": ["CAP_KILL"], "permitted": ["CAP_KILL"]},
        "noNewPrivileges": True,
        "apparmorProfile": "cri-containerd.apparmor.d",
        "selinuxLabel": "system_u:system_r:container_t:s0:c1,c2",
    },
    "mounts": [
        {"destination": "/data", "type": "bind", "source": "/srv", "options": ["rbind", "rro"]},
        {"destination": "/proc", "type": "proc"},
    ],
    "root": {"path": "rootfs", "readonly": True},
    "linux": {
        "uidMappings": [{"containerID": 0, "hostID": 100000, "size": 65536}],
        "resources": {"devices": [{"allow": False, "access": "rwm"}, NULL]},
        "namespaces": [{"type": "pid"}, {"type": "network", "path": "/proc/7/ns/net"}],
        "seccomp": {"defaultAction": "SCMP_ACT_ERRNO", "syscalls": [{"names": ["read"], "action": "SCMP_ACT_ALLOW"}]},
        "maskedPaths": ["/proc/kcore"],
        "readonlyPaths": ["/proc/sys"],
    },
}


def test_all_fields_are_read() -> None:
    kill = frozenset({"CAP_KILL"})
    found = confinement_of(FULL)
    assert found == Confinement(
        user=1000,
        group=1001,
        groups=frozenset({2000}),
        capabilities=Capabilities(bounding=kill, effective=kill, permitted=kill),
        no_new_privileges=True,
        seccomp=found.seccomp,
        apparmor="cri-containerd.apparmor.d",
        selinux="system_u:system_r:container_t:s0:c1,c2",
        masked_paths=frozenset({"/proc/kcore"}),
        read_only_paths=frozenset({"/proc/sys"}),
        read_only_root=True,
        read_only_mounts=frozenset({"/data"}),
        devices=frozenset({Device("c", 1, 3, "rwm")}),
        own_namespaces=frozenset({"pid"}),
        joined_namespaces=frozenset({"network"}),
        user_map=((0, 100000, 65536),),
    )
    assert len(found.seccomp) == len("sha256:") + 64


def test_what_says_nothing_allows_all_but_devices() -> None:
    assert confinement_of({}) == Confinement()


def test_a_filter_is_known_by_what_it_says() -> None:
    def digest(filter_: dict[str, Any]) -> str:
        return confinement_of({"linux": {"seccomp": filter_}}).seccomp

    one = FULL["linux"]["seccomp"]
    assert digest(one) == digest(dict(reversed(one.items())))
    assert digest(one) != digest(one | {"defaultAction": "SCMP_ACT_ALLOW"})


def test_paths_that_each_processor_has_count_once() -> None:
    """The kubelet masks them for the processors that a node has, which differ."""
    masked = [f"/sys/devices/system/cpu/cpu{number}/thermal_throttle" for number in range(3)]
    found = confinement_of({"linux": {"maskedPaths": [*masked, "/proc/cpuinfo"]}})
    assert found.masked_paths == {"/sys/devices/system/cpu/cpu*/thermal_throttle", "/proc/cpuinfo"}


@pytest.mark.parametrize(
    ("rules", "allowed"),
    [
        ([{"allow": True, "access": "rwm"}], {Device("a", None, None, "rwm")}),
        ([NULL, {"allow": False, "access": "rwm"}], set()),
        ([NULL, NULL | {"allow": False}], set()),
        ([{"allow": True, "type": "c", "major": -1, "access": "m"}], {Device("c", None, None, "m")}),
    ],
)
def test_rules_for_devices_count_in_turn(rules: list[dict[str, Any]], allowed: set[Device]) -> None:
    assert confinement_of({"linux": {"resources": {"devices": rules}}}).devices == allowed


def test_an_unconfined_profile_is_none() -> None:
    assert confinement_of({"process": {"apparmorProfile": "unconfined"}}).apparmor == ""


@pytest.mark.parametrize(
    "spec", [{"process": "x"}, {"linux": {"namespaces": [{}]}}, {"process": {"user": {"uid": "x"}}}]
)
def test_what_is_no_specification_is_refused(spec: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"cannot be understood|invalid literal"):
        confinement_of(spec)
