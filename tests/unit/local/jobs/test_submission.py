"""What a person submits is made sure of, and what cannot be done is named."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from cedana_sched.local.jobs.environment_validation import MOST_BYTES_EACH, MOST_VARIABLES
from cedana_sched.local.jobs.submission import create_job_description
from cedana_sched.local.quantities import parse_cpus, parse_memory
from cedana_sched.local.scheduler.resources import Resources
from cedana_sched.model.errors import UsageError
from cedana_sched.model.policy import OnVolumeChange
from tests.unit.local.jobs.job_builders import configuration, job, submission

REFUSED: dict[str, tuple[dict[str, Any], str, str]] = {
    "an unknown group": ({"group": "physics"}, "group", "its groups are: bio, ml"),
    "an id with a slash": ({"id": "../bio"}, "id", "letters, digits"),
    "an id that is empty": ({"id": ""}, "id", "letters, digits"),
    "a variable with a blank": ({"env": {"CEDANA_CHECKPOINT": "a b"}}, "env.CEDANA_CHECKPOINT", "letters, digits"),
    "an id and another variable": ({"id": "a", "env": {"CEDANA_CHECKPOINT": "b"}}, "id", "is 'b'"),
    "a name with a newline": ({"name": "a\nb"}, "name", "letters, digits"),
    "no command": ({"argv": ()}, "argv", "after '--'"),
    "zero cpus": ({"cpus": "0"}, "cpus", "at least 0.001"),
    "negative cpus": ({"cpus": "-1"}, "cpus", "number of cores"),
    "cpus in words": ({"cpus": "two"}, "cpus", "number of cores"),
    "a cpu too fine": ({"cpus": "0.0001"}, "cpus", "steps of 0.001"),
    "zero memory": ({"memory": "0"}, "memory", "512Mi"),
    "memory of an unknown unit": ({"memory": "2Gb"}, "memory", "optional unit"),
    "more cpus than the cohort has": ({"cpus": "5"}, "cpus", "at most 4 cpus in all"),
    "more memory than the cohort has": ({"memory": "9Gi"}, "memory", "at most 8Gi of memory in all"),
    "a gang that can never start": ({"replicas": 3, "cpus": "1.5"}, "cpus", "at most 4 cpus in all"),
    "no replicas": ({"replicas": 0}, "replicas", "1 to"),
    "a variable without a name": ({"env": {"": "x"}}, "env", "without '='"),
    "a variable's name with a =": ({"env": {"A=B": "x"}}, "env", "without '='"),
    "a variable with a NUL": ({"env": {"A": "x\0y"}}, "env.A", "leave the variable out"),
    "a variable that execve refuses": ({"env": {"A": "x" * MOST_BYTES_EACH}}, "env.A", "in a file"),
    "variables that are too much": ({"env": {f"A{n}": "x" * 99_000 for n in range(3)}}, "env", "--export"),
    "too many variables": ({"env": {f"A{n}": "" for n in range(MOST_VARIABLES + 1)}}, "env", "--export"),
    "a terminal for several": ({"tty": True, "replicas": 2}, "replicas", "one replica"),
    "a terminal's second stream": ({"tty": True, "stderr": "/e"}, "stderr", "one stream"),
    "a relative directory": ({"cwd": "here"}, "cwd", "from the root"),
    "another word for a rewind": ({"on_volume_change": "rewind"}, "on-volume-change", "Rewind, ColdStart, Fail"),
    "a deadline of zero": ({"deadline_seconds": 0.0}, "deadline", "above 0"),
    "a deadline that is no number": ({"deadline_seconds": float("nan")}, "deadline", "above 0"),
}


@pytest.mark.parametrize("what", REFUSED)
def test_it_is_refused_with_field_value_and_remedy(what: str) -> None:
    fields, field, remedy = REFUSED[what]

    with pytest.raises(UsageError) as caught:
        job(**fields)

    assert caught.value.field == field
    assert remedy in caught.value.remedy


def test_a_job_that_fits_keeps_what_was_asked_for() -> None:
    described = job("0123456789", cpus="500m", memory="1.5Gi", replicas=2, id="md", priority=3).description

    assert described.request == Resources(500, 3 << 29)
    assert (described.id, described.priority, described.namespace) == ("md", 3, "default")
    assert described.output_paths(1) == ("/outputs/0123456789/stdout.1", "/outputs/0123456789/stderr.1")


def test_an_error_on_a_variable_does_not_show_its_value() -> None:
    with pytest.raises(UsageError) as caught:
        job(env={"TOKEN": "secret\0"})
    assert "secret" not in str(caught.value)


def test_a_name_is_made_of_the_program_and_the_uid() -> None:
    assert job("job-0123456789").description.name == "sim-456789"
    assert job("job-0123456789", argv=("/opt/my tool!",)).description.name == "my-tool-456789"


def test_the_id_is_given_by_hand_by_variable_or_by_the_group() -> None:
    assert job(id="by-hand").description.id == "by-hand"
    assert job(env={"CEDANA_CHECKPOINT": "by-variable"}).description.id == "by-variable"
    assert job(name="by-group").description.id == "by-group"
    assert job(group="ml").description.id is None


def test_a_deadline_overrides_the_groups_and_nothing_else() -> None:
    policy = job(deadline_seconds=5).description.policy

    assert policy.deadline_seconds == 5
    assert policy.model_copy(update={"deadline_seconds": 600.0}) == configuration().group("bio").checkpoint_policy


@pytest.mark.parametrize("deadline", [None, 5])
def test_the_policy_for_files_that_ran_ahead_overrides_the_groups(deadline: float | None) -> None:
    policy = job(on_volume_change="ColdStart", deadline_seconds=deadline).description.policy
    groups = configuration().group("bio").checkpoint_policy

    assert policy.on_volume_change is OnVolumeChange.COLD_START
    restored = {"on_volume_change": groups.on_volume_change, "deadline_seconds": groups.deadline_seconds}
    assert policy.model_copy(update=restored) == groups


@pytest.mark.parametrize(
    ("text", "millicores"), [("1", 1000), ("0.5", 500), (".25", 250), ("250m", 250), (2, 2000), (1.5, 1500)]
)
def test_cpus_are_read_as_people_write_them(text: Any, millicores: int) -> None:
    assert parse_cpus("cpus", text) == millicores


@pytest.mark.parametrize(
    ("text", "size"),
    [("1024", 1024), ("2Gi", 2 << 30), ("500M", 500_000_000), ("1.5Ki", 1536), ("1k", 1000), (7, 7), ("1Ti", 1 << 40)],
)
def test_memory_is_read_as_people_write_it(text: Any, size: int) -> None:
    assert parse_memory("memory", text) == size


@pytest.mark.parametrize("text", ["", "Gi", "1 Gi", "1e9", "0x10", "--1", "1.2.3", "∞", "nan", True, "1.5.m"])
def test_what_is_no_amount_is_refused(text: Any) -> None:
    with pytest.raises(UsageError):
        parse_cpus("cpus", text)
    with pytest.raises(UsageError):
        parse_memory("memory", text)


def test_the_same_submission_is_described_the_same() -> None:
    first = create_job_description(submission(), configuration(), uid="u", now=1.0, outputs=Path("/o"))

    assert first == create_job_description(submission(), configuration(), uid="u", now=1.0, outputs=Path("/o"))
