"""House rules that no linter has: tracked files name no package index and no path of a particular machine.

A part of `make lint`. A requirements file is pinned by hashes, independent of the index; a URL in a requirements file
would tie it to one machine. Other files may link to hosts in `KNOWN_HOSTS` only, so that a new host is a decision.
"""

from __future__ import annotations

import re
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

from tools.tracked import tracked_files

ROOT = Path(__file__).resolve().parents[1]

KNOWN_HOSTS = frozenset({
    "169.254.169.254",  # link-local: the metadata servers of AWS, GCP and Azure
    "in-toto.io",  # type URI of statements
    "keepachangelog.com",
    "kubernetes.default.svc.cluster.local",  # the API server, from inside any cluster
    "s3.amazonaws.com",  # the XML namespace of S3's messages
    "semver.org",
    "snapshot.debian.org",  # archive of all Debian packages, for pinned ones that mirrors no longer have
    "sts.amazonaws.com",  # the XML namespace of STS's messages
    "slsa.dev",  # type URI of its predicate
    "www.apache.org",
    "www.contributor-covenant.org",
})  # fmt: skip

_URL = re.compile(r"\b(?:https?|ftp)://(?P<host>[A-Za-z0-9_.-]+)")
_LOOPBACK_OR_EXAMPLE = re.compile(
    r"(127\.\d+\.\d+\.\d+|(.*\.)?(example|invalid|test|localhost)|(.*\.)?example\.(com|org|net))\.?"
)
_MACHINE_PATH = re.compile(r"(?<![\w.])/(?:work|home/[a-z]\w*|Users/\w+)/")
_PINNED = re.compile(r"^([A-Za-z0-9_.-]+)==", re.MULTILINE)
_INDEX_OPTION = re.compile(r"://|--(?:extra-)?index-url|--find-links")


def complaints(path: Path, text: str) -> Iterator[str]:
    """Yield every violation in one file, as `file:line: what`."""
    for number, line in enumerate(text.splitlines(), start=1):
        where = f"{path}:{number}"
        if path.parts[0] == "requirements" and _INDEX_OPTION.search(line):
            yield f"{where}: a requirements file names a package index"
        for match in _URL.finditer(line):
            host = match["host"].lower()
            if "." in host and host not in KNOWN_HOSTS and not _LOOPBACK_OR_EXAMPLE.fullmatch(host):
                yield f"{where}: host {host!r} is not in KNOWN_HOSTS of tools/check_house.py"
        if _MACHINE_PATH.search(line):
            yield f"{where}: names a path of one machine"


def unpinned() -> Iterator[str]:
    """Yield dependencies of pyproject.toml that the requirements files do not pin."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    wanted = {"runtime": project["dependencies"], "cluster": extras["cluster"], "dev": extras["dev"]}
    for kind, dependencies in wanted.items():
        pinned = set(
            re.findall(r"^([A-Za-z0-9_.-]+)==", (ROOT / "requirements" / f"{kind}.txt").read_text(), re.MULTILINE)
        )
        for dependency in dependencies:
            name = re.split(r"[^A-Za-z0-9_.-]", dependency)[0]
            if name != project["name"] and re.sub(r"[-_.]+", "-", name).lower() not in pinned:
                yield f"requirements/{kind}.txt: {name} is not pinned: run 'make lock'"


def main() -> int:
    found = list(unpinned())
    for path in map(Path, tracked_files(ROOT)):
        try:
            text = (ROOT / path).read_text(encoding="utf-8")
        except UnicodeDecodeError:  # a binary file has no lines to check
            continue
        found += complaints(path, text)
    for complaint in found:
        print(complaint, file=sys.stderr)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
