"""Java archives from Maven repositories: exactly those of a committed list, and no byte of them different.

The list has one line for each archive: `group:artifact:version[:classifier] sha256`. Maven fetches them from wherever
this machine's Maven settings say; nothing is resolved, so any Maven will do.

A new version: let a Maven of at least 3.9 resolve it, with a POM that imports the project's bill of materials,

    mvn dependency:copy-dependencies -DincludeScope=runtime -Dmdep.useRepositoryLayout=true -DoutputDirectory=FOLDER

and write the list of what it has copied: `python -m tests.cluster.armada.jars FOLDER >LIST`.
"""

from __future__ import annotations

import asyncio
import hashlib
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path
from xml.etree import ElementTree as ET

from tests.cluster.cache import cache_dir, digest, fresh_log, made_once
from tests.cluster.commands import run
from tests.cluster.errors import ClusterError
from tests.cluster.steps import Steps

_PLUGIN = "org.apache.maven.plugins:maven-dependency-plugin:3.8.1"
_WHOLE = "complete"


@dataclass(frozen=True)
class Jar:
    """One archive; `sha256` is of its bytes."""

    group: str
    artifact: str
    version: str
    classifier: str
    sha256: str

    @property
    def file(self) -> str:
        """What Maven calls it."""
        return "-".join(filter(None, (self.artifact, self.version, self.classifier))) + ".jar"

    def line(self) -> str:
        """Its line in a list."""
        return f"{':'.join(filter(None, (self.group, self.artifact, self.version, self.classifier)))} {self.sha256}"


def read(text: str) -> list[Jar]:
    """The archives that a list names.

    Raises:
        ValueError: a line is none.
    """
    jars = []
    for line in text.splitlines():
        coordinates, sha256 = line.split(" ")
        group, artifact, version, classifier, *_ = (*coordinates.split(":"), "")
        jars.append(Jar(group, artifact, version, classifier, sha256))
    return jars


async def ensure_jars(name: str, jars: list[Jar], steps: Steps) -> Path:
    """Return a folder with these archives, fetched first where it is missing.

    Raises:
        ClusterError: Maven is missing or cannot fetch one, or it is not what the list says.
    """

    async def make(partial: Path) -> None:
        with steps.step(f"{len(jars)} archives of {name}"):
            await _fetch(name, jars, partial)
            await asyncio.to_thread(_verify, partial, jars)
            (partial / _WHOLE).touch()

    target = cache_dir() / "jars" / f"{name}-{digest([jar.line() for jar in jars])}"
    return await made_once(target, make, is_whole=lambda folder: (folder / _WHOLE).exists())


async def _fetch(name: str, jars: list[Jar], folder: Path) -> None:
    """Let Maven copy them into a folder; what else it downloads for that is thrown away."""
    scratch = folder / "scratch"
    scratch.mkdir(parents=True)
    pom = scratch / "pom.xml"
    pom.write_text(_pom(name, jars))
    await run(
        "mvn", "--batch-mode", "--no-transfer-progress", f"--file={pom}",
        f"-Dmaven.repo.local={scratch / 'repository'}", f"{_PLUGIN}:copy-dependencies", f"-DoutputDirectory={folder}",
        what=f"fetching the archives of {name} failed",
        remedy="see its log, and whether Maven's settings name a repository that has them",
        log=fresh_log(f"jars-{name}.log"),
    )  # fmt: skip
    await asyncio.to_thread(shutil.rmtree, scratch)


def _pom(name: str, jars: list[Jar]) -> str:
    """A project that depends on each of them, and on nothing that they name: Maven fetches several at once then."""
    project = ET.Element("project")
    for key, value in (
        ("modelVersion", "4.0.0"), ("groupId", "test-cluster"), ("artifactId", name), ("version", "1"),
        ("packaging", "pom"),
    ):  # fmt: skip
        ET.SubElement(project, key).text = value
    dependencies = ET.SubElement(project, "dependencies")
    for jar in jars:
        dependency = ET.SubElement(dependencies, "dependency")
        for key, value in (
            ("groupId", jar.group), ("artifactId", jar.artifact), ("version", jar.version),
            ("classifier", jar.classifier),
        ):  # fmt: skip
            if value:
                ET.SubElement(dependency, key).text = value
        exclusion = ET.SubElement(ET.SubElement(dependency, "exclusions"), "exclusion")
        for key in ("groupId", "artifactId"):
            ET.SubElement(exclusion, key).text = "*"
    return ET.tostring(project, encoding="unicode")


def _verify(folder: Path, jars: list[Jar]) -> None:
    for jar in jars:
        found = _sha256(folder / jar.file)
        if found != jar.sha256:
            raise ClusterError(
                f"{jar.file} has the SHA-256 {found} instead of {jar.sha256}",
                remedy="see whether the repository that Maven's settings name serves it unchanged",
            )


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def in_repository_layout(folder: Path) -> list[Jar]:
    """What lies in a folder of the layout group/artifact/version/artifact-version[-classifier].jar."""
    found = []
    for path in folder.rglob("*.jar"):
        *group, artifact, version, _ = path.relative_to(folder).parts
        classifier = path.stem.removeprefix(f"{artifact}-{version}").removeprefix("-")
        found.append(Jar(".".join(group), artifact, version, classifier, _sha256(path)))
    return sorted(found, key=Jar.line)


if __name__ == "__main__":
    for each in in_repository_layout(Path(sys.argv[1])):
        print(each.line())
