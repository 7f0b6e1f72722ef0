"""A snapshot comes back with the privileges that it had, so only where the new container allows them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from cedana_sched.model.errors import RestoreError
from cedana_sched.model.policy import OnRestoreFailure
from cedana_sched.runtime_handler.plan import read_result
from tests.integration.cluster.node.conftest import ACCOUNT, IMAGE
from tests.integration.cluster.node.pods import Change, Container
from tests.integration.cluster.node.restoring.conftest import Site

pytestmark = pytest.mark.criu

WITNESS = """
import time
while True:
    status = dict(line.split(":", 1) for line in open("/proc/self/status"))
    print(*(status[name].split()[0] for name in ("Uid", "CapEff", "NoNewPrivs", "Seccomp")))
    time.sleep(0.02)
"""
FILTER = {
    "defaultAction": "SCMP_ACT_ALLOW",
    "architectures": ["SCMP_ARCH_X86_64"],
    "syscalls": [{"names": ["ptrace"], "action": "SCMP_ACT_ERRNO"}],
}


def privileged(spec: dict[str, Any]) -> None:
    for names in spec["process"]["capabilities"].values():
        names += ["CAP_SYS_ADMIN", "CAP_SYS_PTRACE", "CAP_NET_ADMIN"]
    spec["linux"]["maskedPaths"] = []


def unprivileged(spec: dict[str, Any]) -> None:
    spec["process"] |= {"user": {"uid": 1000, "gid": 1000}, "noNewPrivileges": True, "capabilities": {}}
    spec["linux"]["seccomp"] = FILTER


def saved(site: Site, change: Change = lambda _: None) -> tuple[Container, Path]:
    pod = site.node.pod("pod-1")
    main = pod.run("main", WITNESS, change=change)
    main.await_lines(3)
    return main, site.take(pod)


def said_again(site: Site, images: Path) -> str:
    """The first line of the container that comes back in another pod."""
    pod = site.replacement("pod-2", "main")
    assert site.bring_back(pod, images, "main") is None
    pod.containers["main"].await_lines(1)
    return pod.containers["main"].lines[0]


def test_root_with_capabilities_does_not_come_back_in_a_pod_without(site: Site) -> None:
    first, images = saved(site, privileged)
    assert first.lines[0].startswith("0 ")
    site.template = unprivileged

    second = site.replacement("pod-2", "main")
    error = site.bring_back(second, images, "main")

    again = second.containers["main"]
    again.await_lines(1)
    assert again.lines[:1] == ["cold"]
    assert isinstance(error, RestoreError)
    assert "container main: it would have more privileges than its new container allows" in str(error)
    assert "user: 0 in the snapshot, 1000 in the new container" in str(error)
    assert "give the pod the securityContext that the snapshot was taken with" in str(error)
    result = read_result(str(site.state / "pods/pod-2"), "main")
    assert result is not None
    assert (result.restored, result.cold, result.log) == (False, True, None), "CRIU has not been called"
    assert not (site.folder / "data/logs/pod-2").exists()


def user(spec: dict[str, Any]) -> None:
    spec["process"]["user"]["uid"] = 1000


def group(spec: dict[str, Any]) -> None:
    capability_less(spec)
    spec["process"]["user"]["gid"] = 1000


def capability_less(spec: dict[str, Any]) -> None:
    for names in spec["process"]["capabilities"].values():
        names.remove("CAP_SETGID")


def no_new_privileges(spec: dict[str, Any]) -> None:
    spec["process"]["noNewPrivileges"] = True


def seccomp(spec: dict[str, Any]) -> None:
    spec["linux"]["seccomp"] = FILTER


def apparmor(spec: dict[str, Any]) -> None:
    spec["process"]["apparmorProfile"] = "cri-containerd.apparmor.d"


def selinux(spec: dict[str, Any]) -> None:
    spec["process"]["selinuxLabel"] = "system_u:system_r:container_t:s0:c1,c2"


def read_only_root(spec: dict[str, Any]) -> None:
    spec["root"]["readonly"] = True


def masked(spec: dict[str, Any]) -> None:
    spec["linux"]["maskedPaths"].append("/proc/sched_debug")


def read_only(spec: dict[str, Any]) -> None:
    spec["linux"]["readonlyPaths"].append("/proc/acpi")


def read_only_volume(spec: dict[str, Any]) -> None:
    (data,) = (mount for mount in spec["mounts"] if mount["destination"] == "/data")
    data["options"] = ["rbind", "rprivate", "ro"]


def own_network(spec: dict[str, Any]) -> None:
    spec["linux"]["namespaces"] = [one for one in spec["linux"]["namespaces"] if one["type"] != "network"]
    spec["linux"]["namespaces"].append({"type": "network"})


WEAKER = {
    "user: 0 in": user,
    "group: 0 in": group,
    "permitted capabilities: CAP_SETGID in": capability_less,
    "no new privileges: no in": no_new_privileges,
    "seccomp filter: none in": seccomp,
    "AppArmor profile: none in": apparmor,
    "SELinux label: none in": selinux,
    "read-only root: no in": read_only_root,
    "masked paths: /proc/sched_debug open in": masked,
    "read-only paths: /proc/acpi writable in": read_only,
    "read-only mounts: /data writable in": read_only_volume,
    "namespaces: network of others in": own_network,
}


@pytest.mark.parametrize(("said", "template"), WEAKER.items(), ids=[change.__name__ for change in WEAKER.values()])
def test_a_template_that_is_weaker_in_one_field_is_refused_by_its_name(site: Site, said: str, template: Change) -> None:
    _, images = saved(site)
    site.watched.policy = OnRestoreFailure.FAIL
    site.template = template

    second = site.replacement("pod-2", "main")
    with pytest.raises(AssertionError, match="cedana: not continued from its snapshot") as refused:
        site.bring_back(second, images, "main")
    assert said in str(refused.value)
    assert not second.containers["main"].lines


def allow_all_devices(spec: dict[str, Any]) -> None:
    spec["linux"]["resources"]["devices"] = [{"allow": True, "access": "rwm"}]


def test_devices_that_the_new_container_must_not_use_are_refused(site: Site) -> None:
    _, images = saved(site, allow_all_devices)
    second = site.replacement("pod-2", "main")
    assert "devices: a *:* rwm in the snapshot, none in the new container" in str(
        site.bring_back(second, images, "main")
    )


def test_a_template_that_allows_more_is_no_matter(site: Site) -> None:
    first, images = saved(site, no_new_privileges)
    site.template = privileged
    assert said_again(site, images) == first.lines[-1], "they have what they had"


def test_a_filter_that_is_the_same_comes_back(site: Site) -> None:
    first, images = saved(site, unprivileged)
    site.template = unprivileged
    assert said_again(site, images) == first.lines[-1] == "1000 0000000000000000 1 2"


def test_what_came_back_with_too_much_before_does_not_spread(site: Site) -> None:
    """Processes may have more than their container says, as those that an earlier version has continued."""
    _, images = saved(site, privileged)
    second = site.replacement("pod-2", "main")
    site.template = privileged
    assert site.bring_back(second, images, "main") is None
    main = second.containers["main"]
    main.await_lines(3)
    main.change(unprivileged)
    images = site.take(second)

    site.template = unprivileged
    error = site.bring_back(site.replacement("pod-3", "main"), images, "main")
    assert "users of its processes: 0 in the snapshot, 1000 in the new container" in str(error)


def test_what_came_back_counts_and_not_what_was_recorded_of_it(site: Site) -> None:
    _, images = saved(site)
    weak = site.node.pod("pod-weak")
    weak.run("main", WITNESS, change=unprivileged).await_lines(1)
    site.facts["privileges"] = site.freeze(weak).restore_facts["privileges"]
    site.template = unprivileged
    second = site.replacement("pod-2", "main")
    error = site.bring_back(second, images, "main")
    again = second.containers["main"]
    again.await_lines(1)
    assert again.lines == ["cold"], "root's process has not executed an instruction"
    assert "users of its processes: 0 in the snapshot, 1000 in the new container" in str(error)


def test_a_snapshot_that_does_not_say_is_refused_in_words(site: Site) -> None:
    _, images = saved(site)
    del site.facts["privileges"]
    error = site.bring_back(site.replacement("pod-2", "main"), images, "main")
    assert "the snapshot does not say with which privileges it was taken" in str(error)


@pytest.mark.parametrize("may_change", [True, False])
def test_another_image_is_refused_before_anything_is_laid_unless_the_policy_allows_it(
    site: Site, may_change: bool
) -> None:
    _, images = saved(site)
    assert site.facts["images"]["main"] == IMAGE
    site.facts["images"] = {"main": "registry.example/other"}
    site.watched.other_images = may_change
    second = site.replacement("pod-2", "main")
    (second.volume / "of the new pod").touch()
    if may_change:
        assert site.bring_back(second, images, "main") is None
        return
    with pytest.raises(RestoreError, match=f"container main: image: registry.example/other in the snapshot, {IMAGE}"):
        site.refuse(second, images)
    assert (second.volume / "of the new pod").exists()


def test_a_pod_of_another_account_is_refused(site: Site) -> None:
    _, images = saved(site)
    site.facts["service_account"] = "deployer"
    with pytest.raises(RestoreError, match=f"ServiceAccount: deployer in the snapshot, {ACCOUNT} in the new pod"):
        site.refuse(site.replacement("pod-2", "main"), images)


def test_a_record_that_cannot_be_read_is_refused(site: Site) -> None:
    _, images = saved(site)
    site.facts = json.loads(json.dumps(site.facts))
    site.facts["privileges"]["main"]["version"] = 9
    second = site.replacement("pod-2", "main")
    with pytest.raises(RestoreError, match="record of privileges cannot be read"):
        site.refuse(second, images)


SET_ID = """
import os, shutil, time
shutil.copy("/usr/bin/id", "/data/tool")
os.chmod("/data/tool", 0o4755)
os.mkdir("/data/shared")
os.chmod("/data/shared", 0o2775)
while True:
    print("made")
    time.sleep(0.02)
"""


def of_a_user(spec: dict[str, Any]) -> None:
    """Who may gain privileges by programs, and finds one that root had made."""
    spec["process"]["user"] = {"uid": 1000, "gid": 1000}
    for kind in ("effective", "permitted"):
        spec["process"]["capabilities"][kind] = []
    spec["process"]["args"] = ["/data/tool", "-u"]


def test_a_program_of_roots_in_a_volume_makes_nobody_root_who_begins_anew(site: Site) -> None:
    pod = site.node.pod("pod-1")
    pod.run("main", SET_ID).await_lines(1)
    images = site.take(pod)
    site.template = of_a_user
    second = site.replacement("pod-2", "main")
    error = site.bring_back(second, images, "main")
    assert "user: 0 in the snapshot, 1000 in the new container" in str(error)
    again = second.containers["main"]
    again.await_lines(1)
    assert again.lines == ["1000"]
    assert (second.volume / "tool").stat().st_mode == 0o100755
    assert (second.volume / "shared").stat().st_mode == 0o42775, "of a folder it only says whose its files are"


RUNS_SET_ID = """
import os, shutil, subprocess, time
shutil.copy("/usr/bin/sleep", "/data/tool")
os.chmod("/data/tool", 0o4755)
tool = subprocess.Popen(["/data/tool", "1000"])
while True:
    print("runs")
    time.sleep(0.02)
"""


def test_a_pod_in_which_such_a_program_runs_does_not_continue(site: Site) -> None:
    pod = site.node.pod("pod-1")
    pod.run("main", RUNS_SET_ID).await_lines(3)
    images = site.take(pod)
    error = site.bring_back(site.replacement("pod-2", "main"), images, "main")
    assert "data/tool is another file now than when the snapshot was taken" in str(error)
