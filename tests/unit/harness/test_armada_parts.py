"""What Armada beside a test cluster is made of: the list of archives, what logs say, configurations, rights."""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
from pathlib import Path

import pytest

from tests.cluster.armada import components, jars, parts, rights
from tests.cluster.armada.jars import Jar
from tests.cluster.armada.lines import Lines
from tests.cluster.errors import ClusterError
from tests.cluster.steps import Steps

_MAVEN = """\
#!/usr/bin/env python3
import sys
from pathlib import Path
from xml.etree import ElementTree
options = dict(word.split("=", 1) for word in sys.argv if "=" in word)
folder = Path(options["-DoutputDirectory"])
for item in ElementTree.parse(options["--file"]).iterfind("dependencies/dependency"):
    assert item.findtext("exclusions/exclusion/artifactId") == "*"
    artifact, version = item.findtext("artifactId"), item.findtext("version")
    classifier = f"-{item.findtext('classifier')}" if item.findtext("classifier") else ""
    (folder / f"{artifact}-{version}{classifier}.jar").write_text(artifact)
with Path(__file__).with_name("calls").open("a") as calls:
    calls.write("called\\n")
"""

_CLUSTER_ROLE = """\
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata:
  name: {{ include "executor.name" . }}
  labels:
    {{- include "executor.labels.all" . | nindent 4 }}
rules:
- apiGroups: [""]
  resources: [pods]
  verbs: [create]
"""


def jar(artifact: str, content: str, classifier: str = "") -> Jar:
    return Jar("org.example", artifact, "1.0", classifier, hashlib.sha256(content.encode()).hexdigest())


@pytest.fixture
def maven(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A Maven whose archives contain their own artifact's name; the file says how often it was called."""
    program = tmp_path / "bin" / "mvn"
    program.parent.mkdir()
    program.write_text(_MAVEN)
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}:{os.environ['PATH']}")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return program.with_name("calls")


def test_list_of_pulsar_is_exact() -> None:
    listed = jars.read(parts.PULSAR.read_text())
    assert [each.line() for each in listed] == parts.PULSAR.read_text().splitlines()
    assert all(len(bytes.fromhex(each.sha256)) == 32 for each in listed)
    assert len({each.file for each in listed}) == len(listed)
    assert {each.version for each in listed if each.group == "org.apache.pulsar"} == {"4.0.7"}


async def test_archives_are_fetched_once(maven: Path) -> None:
    wanted = [jar("one", "one"), jar("two", "two", "linux-x86_64")]
    folder = await jars.ensure_jars("example", wanted, Steps())
    assert {path.name for path in folder.glob("*.jar")} == {"one-1.0.jar", "two-1.0-linux-x86_64.jar"}
    assert await jars.ensure_jars("example", wanted, Steps()) == folder
    assert maven.read_text() == "called\n"
    assert [path for path in folder.parent.iterdir() if path != folder] == []


async def test_archive_with_other_bytes_is_refused(maven: Path) -> None:
    with pytest.raises(ClusterError, match=r"one-1\.0\.jar has the SHA-256"):
        await jars.ensure_jars("example", [jar("one", "another")], Steps())
    with pytest.raises(ClusterError):
        await jars.ensure_jars("example", [jar("one", "another")], Steps())
    assert maven.read_text() == "called\n" * 2


def test_list_is_made_of_what_maven_resolved(tmp_path: Path) -> None:
    for each in (jar("a-b", "x"), jar("c", "y", "linux-x86_64")):
        path = tmp_path / "org/example" / each.artifact / each.version / each.file
        path.parent.mkdir(parents=True)
        path.write_text({"a-b": "x", "c": "y"}[each.artifact])
    assert jars.in_repository_layout(tmp_path) == [jar("a-b", "x"), jar("c", "y", "linux-x86_64")]


async def test_line_is_heard_when_it_is_written(tmp_path: Path) -> None:
    log = tmp_path / "scheduler.log"
    log.write_text("Retrieved 1 executors\n")
    lines = Lines(log)

    async def say() -> None:
        with log.open("a") as file:
            for text in ("Retrieved 0 executors\nRetri", "eved 1 executors now\nmore\n"):
                file.write(text)
                file.flush()
                await asyncio.sleep(0)

    async with asyncio.TaskGroup() as group:
        heard = group.create_task(lines.wait_for(components.executors_seen(1), within=30))
        group.create_task(say())
    assert heard.result() == "Retrieved 1 executors now"
    assert await lines.wait_for("more", within=30) == "more"


async def test_log_may_come_later(tmp_path: Path) -> None:
    lines = Lines(tmp_path / "pulsar.log")
    async with asyncio.TaskGroup() as group:
        heard = group.create_task(lines.wait_for("ready", within=30))
        await asyncio.sleep(0)
        (tmp_path / "pulsar.log").write_text("ready\n")
    assert heard.result() == "ready"


async def test_what_is_not_said_in_time_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ClusterError, match="pulsar did not say 'ready'"):
        await Lines(tmp_path / "pulsar.log").wait_for("ready", within=0)


def test_executor_is_told_its_cluster_and_where_armada_is() -> None:
    [(path, text)] = components.files({"executor": components.executor_configuration("west", "192.0.2.1")}).items()
    written = json.loads(text)
    assert path in components.command("executor")
    assert written["application"]["clusterId"] == "west"
    assert written["executorApiConnection"]["armadaUrl"] == "192.0.2.1:50052"


def test_every_component_has_a_configuration() -> None:
    paths = components.files()
    for service in components.services():
        assert service.command[-1] in paths
    for migration in components.migrations():
        assert migration[-1] in paths


def test_executor_has_the_rights_of_its_chart(tmp_path: Path) -> None:
    template, classes = tmp_path / "clusterrole.yaml", tmp_path / "classes.yaml"
    template.write_text(_CLUSTER_ROLE)
    classes.write_text("kind: PriorityClass\nmetadata: {name: one}\n---\nkind: PriorityClass\nmetadata: {name: two}\n")
    bodies = {(body["kind"], body["metadata"]["name"]): body for body in rights.objects(classes, template)}
    assert ("PriorityClass", "two") in bodies
    assert bodies["ClusterRole", rights.NAME]["rules"] == [
        {"apiGroups": [""], "resources": ["pods"], "verbs": ["create"]}
    ]
    [subject] = bodies["ClusterRoleBinding", rights.NAME]["subjects"]
    assert f"system:serviceaccount:{subject['namespace']}:{subject['name']}" == rights.USER
