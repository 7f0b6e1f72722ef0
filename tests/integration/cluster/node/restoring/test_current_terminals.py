"""Containers with a terminal of which programs have several files open, of /dev/tty too: real runc and real CRIU."""

from __future__ import annotations

from typing import Any

import pytest

from tests.integration.cluster.node.pods import Container
from tests.integration.cluster.node.restoring.conftest import Site

pytestmark = pytest.mark.criu

BASH = ("/bin/bash", "--norc", "--noprofile", "--noediting", "-i")
READER = "echo ready >&5; while read -r line <&5; do echo got $line $(readlink /proc/self/fd/5) >&5; done"


def _with_terminal(specification: dict[str, Any]) -> None:
    specification["process"]["terminal"] = True
    specification["process"]["env"].append("PS1=> ")


def _start_shell(site: Site, *command: str) -> Container:
    site.template = _with_terminal
    shell = site.node.pod("pod-1").container("main")
    shell.make(command)
    shell.change(_with_terminal)
    shell.start()
    shell.shows("> ")
    shell.type("stty -echo\r")
    shell.shows("\r\n> ")
    return shell


def _replace(site: Site, shell: Container, generation: int) -> Container:
    images = site.take(shell.pod)
    pod = site.replacement(f"pod-{generation}", "main")
    assert site.bring_back(pod, images, "main") is None
    return pod.containers["main"]


def test_a_shell_controls_its_jobs_at_the_terminal_of_the_new_pod(site: Site) -> None:
    shell = _start_shell(site, "/bin/dash", "-i")
    shell.type("cat\rin front\r")
    shell.shows("in front\r\n")
    for generation in (2, 3):
        shell = _replace(site, shell, generation)
        shell.type("still in front\r")
        shell.shows("still in front\r\n")
        shell.type("\x1a")  # the key for SIGTSTP: the shell takes the terminal back
        assert "Stopped" in shell.shows("> ")
        shell.type("read -r word </dev/tty; echo got $word\rword\r")
        assert shell.shows("> ") == "got word\r\n> "
        shell.type("fg\rin front\r")
        shell.shows("in front\r\n")


@pytest.mark.parametrize("others", ["", "</dev/null >/dev/null 2>&1"], ids=["beside others", "alone"])
@pytest.mark.parametrize("file", ["/dev/tty", "/dev/pts/0"])
def test_a_program_under_a_shell_reads_on(site: Site, file: str, others: str) -> None:
    shell = _start_shell(site, *BASH)
    shell.type(f"sh -c '{READER}' 5<>{file} {others}; echo over\r")
    shell.shows("ready\r\n")
    shell.type("one\r")
    assert shell.shows("\r\n") == f"got one {file}\r\n"
    for generation in (2, 3):
        shell = _replace(site, shell, generation)
        shell.type("two\r")
        assert shell.shows("\r\n") == "got two /dev/pts/0\r\n"
    shell.type("\x03")  # the key for SIGINT reaches what runs in front
    assert shell.shows("> ").endswith("\r\n> ")
