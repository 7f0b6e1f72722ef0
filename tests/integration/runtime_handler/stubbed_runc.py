"""The real launcher and handler over a runc that only writes down what it is asked for."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
from pathlib import Path

import cedana_sched
from cedana_sched.runtime_handler.plan import RESTORE, ContainerPlan, ContainerResult, Plan, read_result, write_plan
from cedana_sched.runtime_handler.privilege_comparison import Confinement, Credentials, Privileges
from cedana_sched.runtime_handler.volume_file_comparison import VOLUME_FILES, VolumeFiles, encode

_SOURCE = Path(cedana_sched.__file__).parent
_RUNC = """#!/bin/sh
echo "$@" >>{asked}
for word; do [ "$word" = restore ] && mkdir -p {states}/c1 && echo {group} >{work}/held; done
exit 0
"""
_VERBS = ("create", "restore", "start", "delete")


class StubbedNode:
    """One pod with one plan, and its container c1."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.states, self.asked_file = folder / "states", folder / "asked"
        self.pod = folder / "run/pods/u-1"
        self.bundle = folder / "bundle"
        self.log = folder / "runc.log"
        here = folder / "opt"
        (here / "handler/cedana_sched").mkdir(parents=True)
        (here / "handler/cedana_sched/__init__.py").touch()
        (here / "handler/cedana_sched/runtime_handler").symlink_to(_SOURCE / "runtime_handler")
        self.python = folder / "python"
        self.work, self.group = folder / "work", folder / "group"
        self._write_group()
        (folder / VOLUME_FILES).write_text(encode(VolumeFiles((), ())))
        self.interpreter = f'exec {sys.executable} "$@"'
        self.set_python(self.interpreter)
        self.launcher = folder / "cedana-runtime"
        self._write(self.launcher, self._launcher(here, self.runc()))
        (self.bundle / "rootfs").mkdir(parents=True)
        self.make("main")

    def runc(self) -> Path:
        runc = self.folder / "runc"
        self._write(runc, _RUNC.format(asked=self.asked_file, states=self.states, group=self.group, work=self.work))
        return runc

    def _write_group(self) -> None:
        """A control group that is frozen, with nobody in it."""
        self.group.mkdir()
        (self.group / "freezer.state").write_text("FROZEN")
        (self.group / "cgroup.procs").touch()

    def set_python(self, script: str) -> None:
        """What is run as the interpreter."""
        self._write(self.python, f"#!/bin/sh\n{script}\n")

    def make(self, name: str, kind: str = "container") -> None:
        """Write the bundle of a container of the pod."""
        notes = {"container-type": kind, "container-name": name, "sandbox-uid": "u-1", "sandbox-id": "s"}
        specification = {
            "process": {"args": ["x"]},
            "mounts": [],
            "root": {"path": "rootfs"},
            "annotations": {f"io.kubernetes.cri.{key}": value for key, value in notes.items()},
        }
        (self.bundle / "config.json").write_text(json.dumps(specification, separators=(",", ":")))

    def plan(self, decision: str = RESTORE, *names: str, why: str = "", sandbox: str = "") -> Plan:
        """Lay a plan for the pod."""
        nothing = Privileges(Confinement(), Credentials())
        one = ContainerPlan(str(self.folder), str(self.work), privileges=nothing)
        containers = dict.fromkeys(names or ("main",), one)
        plan = Plan(decision, why, containers=containers, sandbox=sandbox)
        write_plan(str(self.pod), plan)
        return plan

    def call(self, verb: str) -> int:
        """Ask the launcher, as the shim does, for container c1; returns its status."""
        words = [str(self.launcher), "--root", str(self.states), "--log", str(self.log), verb]
        words += ["--bundle", str(self.bundle), "c1"] if verb == "create" else ["c1"]
        return subprocess.run(words, check=False, timeout=60).returncode

    def create_without_inotify(self, instances: int) -> int:
        """In a user namespace of its own, so that nobody else lacks them."""
        limit = f"echo {instances} >/proc/sys/user/max_inotify_instances &&"
        words = [str(self.launcher), "--root", str(self.states), "--log", str(self.log)]
        words += ["create", "--bundle", str(self.bundle), "c1"]
        command = ["unshare", "-Ur", "sh", "-c", f'{limit} exec "$@"', "sh", *words]
        return subprocess.run(command, check=False, timeout=60).returncode

    def asked(self) -> list[str]:
        """What runc was asked for, in turn."""
        if not self.asked_file.exists():
            return []
        lines = self.asked_file.read_text().splitlines()
        return [next(word for word in line.split() if word in _VERBS) for line in lines]

    def result(self, name: str = "main") -> ContainerResult | None:
        return read_result(str(self.pod), name)

    def _launcher(self, here: Path, runc: Path) -> str:
        text = (_SOURCE / "runtime_handler/launcher.sh").read_text()
        for place, value in {
            "@HERE@": shlex.quote(str(here)),
            "@RUNC@": str(runc),
            "@STATE@": str(self.pod.parents[1]),
            "@EXPORTS@": "",
            "@PYTHON@": str(self.python),
        }.items():
            text = text.replace(place, value)
        return text

    @staticmethod
    def _write(path: Path, text: str) -> None:
        path.write_text(text)
        path.chmod(0o755)
