"""Names of our objects."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cedana_sched.model.objects.object_names import LONGEST, checkpoint_name, hold_name, restore_name

_DNS_LABEL = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?")


@given(st.text(max_size=300), st.integers(0, 99_999), st.text(max_size=300))
def test_every_name_is_a_dns_label(word: str, index: int, uid: str) -> None:
    for name in (checkpoint_name(word, index, uid), restore_name(word, uid), hold_name(uid)):
        assert _DNS_LABEL.fullmatch(name)
        assert len(name) <= LONGEST


@pytest.mark.parametrize(("first", "second"), [("s1.w1.1", "s1.w1.2"), ("a-b", "a.b"), ("x" * 200, "x" * 201)])
def test_other_uids_have_other_names(first: str, second: str) -> None:
    assert hold_name(first) != hold_name(second)
    assert checkpoint_name("md", 0, first) != checkpoint_name("md", 0, second)


def test_people_recognise_what_it_is_about() -> None:
    assert checkpoint_name("Gromacs_run.7", 3, "u").startswith("gromacs-run-7-3-")
    assert restore_name("md-0-x7k2p", "u").startswith("md-0-x7k2p-")
