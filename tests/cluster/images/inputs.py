"""What an image is made of, as a digest: it changes when the image would, and not otherwise."""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Iterator
from pathlib import Path

from tests.cluster.cache import digest
from tests.cluster.images.catalog import Image


def inputs_digest(image: Image) -> str:
    """Return one name for the Containerfile and all files, modes and links that the build is sent."""
    ignore_file = image.ignore_file
    rules = IgnoreRules(ignore_file.read_text(encoding="utf-8") if ignore_file else "")
    return digest(
        image.containerfile.read_text(encoding="utf-8"),
        [path.read_text(encoding="utf-8") for path in image.requirements],
        list(_entries(image.context, rules)),
    )


class IgnoreRules:
    """The patterns of a `.dockerignore`: the last one that matches a path, or a folder above it, decides."""

    def __init__(self, text: str) -> None:
        self._rules: list[tuple[re.Pattern[str], bool]] = []
        self._exceptions: list[str] = []
        for line in map(str.strip, text.splitlines()):
            if not line or line.startswith("#"):
                continue
            excluded = not line.startswith("!")
            pattern = line.removeprefix("!").strip().strip("/")
            self._rules.append((_compiled(pattern), excluded))
            if not excluded:
                self._exceptions.append(pattern)

    def excludes(self, path: str) -> bool:
        """Whether the build does not see this path, relative to its context."""
        excluded = False
        for pattern, excludes in self._rules:
            if pattern.fullmatch(path):
                excluded = excludes
        return excluded

    def prunes(self, folder: str) -> bool:
        """Whether the folder and all below it is excluded, so that nobody has to look into it."""
        return self.excludes(folder) and not any(_may_lie_below(pattern, folder) for pattern in self._exceptions)


def _may_lie_below(pattern: str, folder: str) -> bool:
    for part, name in zip(pattern.split("/"), folder.split("/"), strict=False):
        if part == "**":
            return True
        if not _compiled(part).fullmatch(name):
            return False
    return True


def _compiled(pattern: str) -> re.Pattern[str]:
    """Translate a pattern; it also matches whatever lies below what it names."""
    tokens = {"**/": r"(?:.*/)?", "**": r".*", "*": r"[^/]*", "?": r"[^/]"}
    parts = re.split(r"(\*\*/|\*\*|\*|\?|\[[^]]+\])", pattern)
    translated = (tokens.get(part) or (part if part.startswith("[") else re.escape(part)) for part in parts)
    return re.compile("".join(translated) + r"(?:/.*)?", re.DOTALL)


def _entries(context: Path, rules: IgnoreRules) -> Iterator[tuple[str, int, str]]:
    for folder, names, files in os.walk(context):
        relative = Path(folder).relative_to(context)
        names[:] = sorted(name for name in names if not rules.prunes(str(relative / name)))
        for name in sorted(files + names):
            path = relative / name
            if not rules.excludes(str(path)):
                yield _entry(context / path, str(path))


def _entry(path: Path, name: str) -> tuple[str, int, str]:
    mode = path.lstat().st_mode
    if path.is_symlink():
        return name, mode, f"-> {path.readlink()}"
    if path.is_file():
        return name, mode, hashlib.sha256(path.read_bytes()).hexdigest()
    return name, mode, ""
