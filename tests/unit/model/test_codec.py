"""Whatever a workload calls its files and processes, what is said of it can be written down and read again."""

from __future__ import annotations

import json
from typing import get_args

import hypothesis.strategies as st
import msgspec
import pytest
from hypothesis import given

from cedana_sched.model import codec
from cedana_sched.model.orders import (
    CheckpointFailed,
    Outcome,
    RemovalFailed,
    RestoreFailed,
    SnapshotFound,
    StageFailed,
)

ANY_TEXT = st.lists(st.text() | st.integers(0xD800, 0xDFFF).map(chr)).map("".join)
"""With lone surrogates, which is how Python reads bytes that are no text (os.fsdecode)."""
FAILURES = st.one_of(
    st.builds(CheckpointFailed, ANY_TEXT, ANY_TEXT, st.booleans()),
    st.builds(StageFailed, ANY_TEXT, ANY_TEXT, st.booleans()),
    st.builds(RestoreFailed, ANY_TEXT, ANY_TEXT),
    st.builds(RemovalFailed, ANY_TEXT, ANY_TEXT),
    st.builds(SnapshotFound, ANY_TEXT, st.none(), ANY_TEXT | st.none()),
)


def is_text(value: str) -> bool:
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


@given(FAILURES)
def test_every_outcome_can_be_written_and_read(outcome: Outcome) -> None:
    as_bytes = codec.encode(outcome)
    as_answer = msgspec.json.encode({"answer": {"number": 1, "outcome": codec.to_builtins(outcome)}})
    read: Outcome = codec.decode(as_bytes, Outcome)  # type: ignore[arg-type]  # a union of structs
    assert codec.decode(json.dumps(json.loads(as_answer)["answer"]["outcome"]), type(outcome)) == read
    for field in outcome.__struct_fields__:
        before, after = getattr(outcome, field), getattr(read, field)
        if not isinstance(before, str) or is_text(before):
            assert after == before


@given(ANY_TEXT)
def test_what_is_no_text_is_marked_and_the_rest_stays(name: str) -> None:
    cleaned = codec.to_builtins(CheckpointFailed("c", f"has mapped ({name})"))["why"]
    assert is_text(cleaned)
    assert cleaned.startswith("has mapped (")
    assert cleaned.endswith(")")
    assert len(cleaned) <= len(name) + 13
    assert is_text(name) == (cleaned == f"has mapped ({name})")


@pytest.mark.parametrize("raw", [b"\xff", b"a\xe4\xb8", "z\u00e4hler".encode("latin-1")])
def test_names_of_files_are_kept_where_they_are_text(raw: bytes) -> None:
    said = CheckpointFailed("c", raw.decode(errors="surrogateescape"))
    assert codec.to_builtins(said)["why"] == raw.decode("ascii", errors="replace")


def test_all_outcomes_with_words_are_tried() -> None:
    """A failure that somebody adds later is tried as well."""
    with_words = {kind for kind in get_args(Outcome) if {"why", "problem"} & set(kind.__struct_fields__)}
    assert with_words == {CheckpointFailed, StageFailed, RestoreFailed, RemovalFailed, SnapshotFound}
