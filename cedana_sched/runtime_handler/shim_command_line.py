"""Command lines by which containerd's shim calls a runtime: runc's, as far as the handler interprets them."""

from __future__ import annotations

_WITH_VALUE = frozenset({"--root", "--log", "--log-format", "--criu", "--rootless"})
_KEPT = frozenset({"--bundle", "-b", "--pid-file", "--console-socket"})
"""Options of `create` that `restore` has as well, with a value; --no-pivot has none."""


class CreateCall:
    """`runc [GLOBAL] create [OPTIONS] ID`.

    Raises:
        ValueError: the command line is another call, or names no bundle.
    """

    def __init__(self, arguments: list[str]) -> None:
        at = 0
        while at < len(arguments) and arguments[at].startswith("-"):
            at += 2 if arguments[at] in _WITH_VALUE else 1
        if arguments[at : at + 1] != ["create"] or at + 1 >= len(arguments):
            raise ValueError("not a call to create a container")
        self.global_options = arguments[:at]
        self.id = arguments[-1]
        self.options: list[str] = []
        """Options that `restore` accepts as well."""
        own = arguments[at + 1 : -1]
        for position, word in enumerate(own):
            name, equals, _ = word.partition("=")
            if name in _KEPT:
                self.options += [word] if equals else own[position : position + 2]
            elif word == "--no-pivot":
                self.options.append(word)
        bundle = _option_value(self.options, "--bundle") or _option_value(self.options, "-b")
        if not bundle:
            raise ValueError("the call names no bundle")
        self.bundle = bundle
        self.root = _option_value(self.global_options, "--root") or "/run/runc"
        """runc's state directory."""
        self.log = _option_value(self.global_options, "--log")
        """runc's log, one JSON object per line; the shim reports its last error."""


def _option_value(options: list[str], name: str) -> str | None:
    for position, word in enumerate(options):
        if word == name and position + 1 < len(options):
            return options[position + 1]
        if word.startswith(f"{name}="):
            return word.partition("=")[2]
    return None
