"""A stream's name becomes a path: what would lead out of the folder, or deeper than one, is no name."""

from __future__ import annotations

import pytest

from cedana_sched.store.stream_writer import is_stream_name


@pytest.mark.parametrize("name", ["pages-1.img", "main/pages-1.img", "volumes/scratch.tar", ".hidden", "a/..."])
def test_files_and_files_in_one_folder_are_names(name: str) -> None:
    assert is_stream_name(name)


@pytest.mark.parametrize(
    "name", ["", "/", "/etc", "a/", "/a", "a//b", "..", ".", "../a", "a/..", "./a", "a/.", "a/b/c", "a\0b", "a/\0"]
)
def test_what_leads_elsewhere_is_no_name(name: str) -> None:
    assert not is_stream_name(name)
