"""Containers with a terminal continue with one: through the runtime handler, the real runc and the real CRIU."""

from __future__ import annotations

import fcntl
import struct
import termios
from typing import Any

import pytest

from tests.integration.cluster.node.restoring.conftest import Site

pytestmark = pytest.mark.criu

SHELL = ["/bin/bash", "--norc", "--noprofile", "--noediting", "-i"]


def _with_terminal(specification: dict[str, Any]) -> None:
    specification["process"]["terminal"] = True
    specification["process"]["env"].append("PS1=> ")


def test_a_shell_continues_at_the_terminal_of_the_new_pod(site: Site) -> None:
    first = site.node.pod("pod-1")
    shell = first.container("main")
    shell.make(SHELL)
    shell.change(_with_terminal)
    shell.start()
    shell.shows("> ")
    assert shell.terminal is not None
    fcntl.ioctl(shell.terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 33, 111, 0, 0))
    shell.type("kept=41; stty -echo intr ^X\r")
    shell.shows("\r\n> ")
    images = site.take(first)

    second = site.replacement("pod-2", "main")
    site.template = _with_terminal
    assert site.bring_back(second, images, "main") is None

    again = second.containers["main"]
    again.type("echo $((kept + 1)) $(tty) $(stty size)\r")
    assert again.shows("> ") == "42 /dev/pts/0 33 111\r\n> "
    again.type("echo through the console >/dev/console\r")
    assert again.shows("> ") == "through the console\r\n> "
    again.type("cat\rin front\r")
    again.shows("in front\r\n")
    again.type("\x18")  # the key for SIGINT reaches what runs in front
    assert again.shows("> ") == "\r\n> "
    images = site.take(second)

    third = site.replacement("pod-3", "main")
    assert site.bring_back(third, images, "main") is None
    third.containers["main"].type("echo still $kept\r")
    assert third.containers["main"].shows("> ") == "still 41\r\n> "


def test_a_program_reads_on_from_the_input_of_the_new_pod(site: Site) -> None:
    first = site.node.pod("pod-1")
    reader = first.container("main")
    reader.make(["/bin/sh", "-c", "while read -r line; do echo got $line $((number += 1)); done; echo end"])
    reader.has_input = True
    reader.start()
    reader.type("one\n")
    reader.await_lines(1)
    images = site.take(first)

    second = site.replacement("pod-2", "main")
    site.has_input = True
    assert site.bring_back(second, images, "main") is None

    again = second.containers["main"]
    again.type("two\n")
    again.await_lines(1)
    assert (reader.lines, again.lines) == (["got one 1"], ["got two 2"])
