"""What kubectl completes."""

from __future__ import annotations

import pytest

from cedana_sched.cli.kubectl.completion import NO_FILES, complete


def names(*words: str) -> list[str]:
    *lines, directive = complete(list(words))
    assert directive == NO_FILES
    return [line.partition("\t")[0] for line in lines]


@pytest.mark.parametrize("words", [(), ("",)])
def test_without_a_word_all_commands_are_offered(words: tuple[str, ...]) -> None:
    assert names(*words) == ["doctor", "hold", "inspect", "list", "policy", "status"]


def test_beginning_of_a_command_is_completed_with_its_meaning() -> None:
    (line, _) = complete(["st"])
    assert line.startswith("status\tShow what is held")


def test_options_of_the_command_are_completed() -> None:
    assert names("status", "--w") == ["--watch"]
    assert names("--output", "json", "list", "--all") == ["--all-namespaces"]
    assert names("list", "md") == []


def test_options_are_offered_once_one_is_begun() -> None:
    assert names("list", "") == []
    assert "--all-namespaces" in names("list", "-")


def test_values_of_an_option_are_offered_after_it() -> None:
    assert names("list", "-o", "") == ["json", "table", "wide", "yaml"]
    assert names("list", "--output", "y") == ["yaml"]
    assert names("list", "--namespace", "-") == []
    assert "--context" in names("list", "-A", "-")
