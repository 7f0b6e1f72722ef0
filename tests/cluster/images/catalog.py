"""Which Containerfiles there are, what they are built from, and what their images are called."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

import cedana_sched
from tests.cluster.errors import ClusterError

REPOSITORY = Path(__file__).resolve().parents[3]
PRODUCT_PREFIX = "ghcr.io/cedana/cedana-sched-"
TEST_PREFIX = "localhost/test/"
TEST_TAG = "dev"
"""Not `latest`: for that Kubernetes asks a registry before every start."""

BASE_NAME = "docker.io/library/debian:trixie-slim"
"""What stands for it here is a root made by debootstrap: no registry can be asked for the real one."""
_BASES = frozenset({BASE_NAME, "debian:trixie-slim", "scratch"})
_BASE_ARGUMENT = "${BASE}"

_ARGUMENT = re.compile(r"\A(?:#.*\n|\s*\n)*ARG BASE=\S+$", re.MULTILINE)
_CRIU_ARGUMENT = re.compile(r"^ARG CRIU_PACKAGES=pinned$", re.MULTILINE)
_FROM = re.compile(r"^\s*FROM\s+(?:--\S+\s+)*(\S+)(?:\s+AS\s+(\S+))?\s*$", re.IGNORECASE | re.MULTILINE)
_WHEELS = re.compile(r"^#\s*wheels:\s*(.+?)\s*$", re.MULTILINE)
_FROM_REPOSITORY = re.compile(r"^#\s*context:\s*repository\s*$", re.MULTILINE)
_ON_DEMAND = re.compile(r"^#\s*laid:\s*on demand\s*$", re.MULTILINE)


@dataclass(frozen=True)
class Image:
    """One Containerfile.

    Args:
        name: short, the name of its folder.
        tag: what pods call the image.
        containerfile: its path.
        context: the folder that its `COPY` lines see.
    """

    name: str
    tag: str
    containerfile: Path
    context: Path

    @property
    def is_product(self) -> bool:
        """Whether it is shipped; the others are of tests."""
        return self.tag.startswith(PRODUCT_PREFIX)

    @property
    def is_on_demand(self) -> bool:
        """Whether only the tests that name it lay it into nodes: it is large."""
        return bool(_ON_DEMAND.search(self._text()))

    @property
    def ignore_file(self) -> Path | None:
        """The file that says what of the context is not sent; None where there is none."""
        beside = self.containerfile.with_name(f"{self.containerfile.name}.dockerignore")
        candidates = (beside, self.context / ".containerignore", self.context / ".dockerignore")
        return next((path for path in candidates if path.exists()), None)

    @property
    def requirements(self) -> list[Path]:
        """Requirements files whose wheels `pip` in the build installs; of the context.

        Raises:
            ClusterError: one that is named does not exist.
        """
        named = [self.context / name for line in _WHEELS.findall(self._text()) for name in line.split()]
        for path in named:
            if not path.is_file():
                raise ClusterError(
                    f"{self.containerfile} names wheels of {path}, which does not exist",
                    remedy="name a file below the folder that the image is built from",
                )
        return named

    @property
    def build_arguments(self) -> dict[str, str]:
        """What the `ARG` lines are here, whatever they are elsewhere: tests outlive Debian's next packages of CRIU."""
        found = {"BASE": BASE_NAME} if _ARGUMENT.search(self._text()) else {}
        return found | ({"CRIU_PACKAGES": "served"} if _CRIU_ARGUMENT.search(self._text()) else {})

    def check_bases(self) -> None:
        """Make sure that every `FROM` can be had without a registry, and elsewhere by a digest if it is shipped.

        Raises:
            ClusterError: naming the one that cannot.
        """
        bases = {"scratch"} if self.is_product else set(_BASES)
        if "BASE" in self.build_arguments:
            bases.add(_BASE_ARGUMENT)
        stages: set[str] = set()
        for base, stage in _FROM.findall(self._text()):
            if self.is_product and base in _BASES - {"scratch"}:
                raise ClusterError(
                    f"{self.containerfile} begins with {base}, for which nobody who builds it can name a digest",
                    remedy=f"write ARG BASE=debian:trixie-slim above the first FROM, and begin with {_BASE_ARGUMENT}",
                )
            if base not in bases | stages:
                raise ClusterError(
                    f"{self.containerfile} begins with {base}, which no registry can be asked for here",
                    remedy=f"begin with one of {', '.join(sorted(_BASES))}",
                )
            stages.add(stage)
        if not stages:
            raise ClusterError(f"{self.containerfile} has no FROM line", remedy="begin with FROM debian:trixie-slim")

    def _text(self) -> str:
        return self.containerfile.read_text(encoding="utf-8")


def find_images(repository: Path = REPOSITORY) -> dict[str, Image]:
    """Return every image that has a Containerfile, by its short name.

    Raises:
        ClusterError: two have the same.
    """
    found: dict[str, Image] = {}
    for containerfile in sorted((repository / "manifests/images").glob("*/Containerfile")):
        name = containerfile.parent.name
        found[name] = Image(name, f"{PRODUCT_PREFIX}{name}:{cedana_sched.__version__}", containerfile, repository)
    for containerfile in sorted((repository / "tests/e2e/images").glob("*/Containerfile")):
        name = containerfile.parent.name
        if name in found:
            raise ClusterError(
                f"{found[name].containerfile} and {containerfile} have the same name", remedy="rename one's folder"
            )
        is_whole = _FROM_REPOSITORY.search(containerfile.read_text(encoding="utf-8"))
        context = repository if is_whole else containerfile.parent
        found[name] = Image(name, f"{TEST_PREFIX}{name}:{TEST_TAG}", containerfile, context)
    return found
