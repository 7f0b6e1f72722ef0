"""A page of docs/ that is followed word by word: its files are written, its commands are typed."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from tests.cluster.commands import run
from tests.cluster.images.catalog import REPOSITORY

_SECTION = re.compile(r"^#{2,4} (.+)$", re.MULTILINE)
"""A section ends at the next title, also at one of a section in it."""
_FILE = re.compile(r"^```\w+ (\S+)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
_COMMANDS = re.compile(r"^```sh\n(.*?)^```$", re.DOTALL | re.MULTILINE)


class Page:
    """One page, in a folder of its own.

    Args:
        name: of the page in docs/.
        folder: an empty one, or that of another page; `manifests` is there as in a clone of the repository.
        environment: of its commands, beside our own.
        instead: what stands in another place here than for others, such as the name of an image.
    """

    def __init__(self, name: str, folder: Path, environment: Mapping[str, str], instead: Mapping[str, str]) -> None:
        text = (REPOSITORY / "docs" / name).read_text()
        for theirs, ours in instead.items():
            assert theirs in text, f"docs/{name} does not say {theirs!r}"
            text = text.replace(theirs, ours)
        _, *parts = _SECTION.split(text)
        self._name = name
        self._sections = dict(zip(parts[::2], parts[1::2], strict=True))
        self._folder = folder
        self._environment = environment
        manifests = folder / "manifests"
        if not manifests.is_symlink():
            manifests.symlink_to(REPOSITORY / "manifests")

    def files(self, section: str) -> dict[str, str]:
        """What stands in a section under a file's name."""
        return dict(_FILE.findall(self._sections[section]))

    async def follow(self, section: str) -> None:
        """Write the files of a section, and type its commands.

        Raises:
            ClusterError: a command failed.
        """
        for name, text in self.files(section).items():
            (self._folder / name).write_text(text)
        commands = _COMMANDS.findall(self._sections[section])
        assert commands, f"there is nothing to type in {section!r}"
        for command in commands:
            await run(
                "bash", "-euc", command, cwd=self._folder, env=self._environment,
                what=f"docs/{self._name}, {section!r} failed", remedy="see what was typed",
            )  # fmt: skip
