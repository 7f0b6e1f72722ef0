"""The agent waits for files although pods hold all inotify instances, or watches, of the user that it runs as.

These limits count per user of the node, across all containers: a pod that runs as root may take all that root has. Here
they are those of a user namespace, so that nobody else on this machine goes short.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

NAMESPACES = ("unshare", "--user", "--map-root-user", "--pid", "--fork", "--mount-proc", "--kill-child")
WAITS = """
import asyncio, faulthandler, os, sys; faulthandler.dump_traceback_later(40, exit=True)
from pathlib import Path
from cedana_sched.cluster.node.containers.containerd_host_paths import HostPaths
from cedana_sched.cluster.node.installation.handler_registration import keep_registered
from cedana_sched.cluster.node.restoring.file_waits import wait_for_path, wait_for_result
from cedana_sched.cluster.node.restoring.incarnation_reports import watch_created_containers
from cedana_sched.cluster.node.restoring.restore_container_messages import RestoreContainerMessages

instances, watches, folder = *sys.argv[1:3], Path(sys.argv[3])
for limit, value in (("instances", instances), ("watches", watches)):
    Path(f"/proc/sys/user/max_inotify_{limit}").write_text(value)
states, results, configuration, pods = (folder / name for name in ("states", "results", "containerd", "pods"))
volume = pods / "p1/volumes/kubernetes.io~empty-dir/cedana-restore"
ready = pods / "p1/plugins/kubernetes.io~empty-dir/cedana-restore/ready"
for path in (states, results, configuration, volume):
    path.mkdir(parents=True)

class Registration:
    renewed = asyncio.Event()
    async def configuration_folders(self): return [configuration]
    async def renew_registration(self): self.renewed.set()

def held():
    links = (os.readlink(entry.path) for entry in os.scandir("/proc/self/fd") if os.path.islink(entry.path))
    return sum(link == "anon_inode:inotify" for link in links)

async def main():
    heard = asyncio.Queue()
    container = RestoreContainerMessages("p1", HostPaths(pods=pods))
    for_ever = [
        asyncio.create_task(watch_created_containers(states, lambda: heard.put_nowait(None))),
        asyncio.create_task(keep_registered(Registration(), quiet_seconds=0.01)),
    ]
    await heard.get()
    waits = [
        asyncio.create_task(wait_for_path(folder / "a/b/c")),
        asyncio.create_task(wait_for_result(results, lambda: next(results.glob("*.json"), None))),
        asyncio.create_task(container.wait_for_run(lambda: (volume / "run").exists() or None)),
        asyncio.create_task(container.wait_until_running()),
    ]
    for _ in range(20):
        await asyncio.sleep(0.01)
    print("held", held())
    assert not any(task.done() for task in (*for_ever, *waits))
    (folder / "a/b").mkdir(parents=True)
    (folder / "a/b/c").touch()
    (results / "main.json").touch()
    ready.parent.mkdir(parents=True)
    ready.touch()
    (volume / "waiting").write_text("r1")
    (volume / "run").touch()
    (configuration / "gpu.toml").touch()
    (states / "c1").mkdir()
    await asyncio.sleep(0.05)
    (states / "c1/state.json").touch()
    await asyncio.gather(*waits)
    await heard.get()
    await Registration.renewed.wait()
    deciding = asyncio.create_task(container.end_with_decision("cold", "why"))
    await wait_for_path(volume / "decision.r1")
    (volume / "taken.r1").touch()
    await deciding
    for task in for_ever:
        assert not task.done()
        task.cancel()
    await asyncio.gather(*for_ever, return_exceptions=True)
    print("left", held())

asyncio.run(asyncio.wait_for(main(), 60))
"""


@pytest.mark.parametrize(
    ("instances", "watches", "held"),
    [(1, 1000, 1), (0, 1000, 0), (1, 0, 1), (1, 2, 1)],
    ids=["one instance", "no instance", "no watch", "few watches"],
)
def test_it_waits_for_all_it_needs(tmp_path: Path, instances: int, watches: int, held: int) -> None:
    command = [*NAMESPACES, sys.executable, "-c", WAITS, str(instances), str(watches), str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=200)
    assert done.returncode == 0, done.stderr
    assert [line for line in done.stdout.splitlines() if line.startswith(("held", "left"))] == [
        f"held {held}",
        "left 0",
    ]
