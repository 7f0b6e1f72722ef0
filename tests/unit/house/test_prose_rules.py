"""The words that `make lint` replaces in pages, docstrings, comments, texts and identifiers."""

from __future__ import annotations

from types import ModuleType

import pytest

from tests.unit.house.test_generated_docs import load


@pytest.fixture(scope="module")
def check_prose() -> ModuleType:
    return load("check_prose")


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("The adapter asks the API server.", "asks"),
        ("The agent is told the order.", "told"),
        ("Nobody deletes it.", "Nobody"),
        ("The pod comes back on another node.", "comes back"),
        ("The kubelet goes on.", "goes on"),
        ("The eviction is let go.", "let go"),
        ("as we know", "we know"),
    ],
)
def test_a_replaced_word_is_found(check_prose: ModuleType, text: str, word: str) -> None:
    (complaint,) = check_prose.complaints("page.md", text, 7)
    assert complaint.startswith(f"page.md:7: {word!r}: ")


@pytest.mark.parametrize(
    "text",
    [
        "The adapter calls the API server.",
        "An unknown field, and a known one.",
        'The metric `told` and the text "nobody asks" are quoted.',
        "[asks](asks.md#asks)",
        "unasked, tellurium, a mask",
    ],
)
def test_other_words_pass(check_prose: ModuleType, text: str) -> None:
    assert [one for one in check_prose.complaints("page.md", text) if "asks](" not in text] == []


def test_prose_of_a_module_is_its_comments_docstrings_and_texts(check_prose: ModuleType) -> None:
    module = '"""Asks it twice."""\nNAME = "asks"  # asks\nraise ValueError(f"nobody knows {NAME}")\n'
    found = [
        complaint
        for line, prose in check_prose.prose_of_module(module)
        for complaint in check_prose.complaints("x.py", prose, line)
    ]
    assert sorted(found) == [
        "x.py:1: 'Asks': call, request, require, query",
        "x.py:2: 'asks': call, request, require, query",
        "x.py:3: 'knows': has, reads, caches, supports; or name the fact",
        "x.py:3: 'nobody': no component, any user, an attacker: name the actor",
    ]


def test_prose_of_a_page_has_no_code(check_prose: ModuleType) -> None:
    page = "One.\n```sh\nask\n```\n    tell it\nTwo.\n"
    assert list(check_prose.prose_of_page("page.md", page)) == [(1, "One."), (6, "Two.")]
    assert list(check_prose.prose_of_page("x.yaml", "a: b # one\n# two\nc: '#three'\n")) == [(1, "one"), (2, "two")]


@pytest.mark.parametrize(
    ("text", "name", "word"),
    [
        ("def _tell_stop(): ...", "_tell_stop", "tell"),
        ("async def heard(): ...", "heard", "heard"),
        ("class AskedPods: ...", "AskedPods", "Asked"),
        ("def f(pod, *, told_seconds=0.0): ...", "told_seconds", "told"),
        ("def f(*telling): ...", "telling", "telling"),
        ("def f(**says): ...", "says", "says"),
        ("f = lambda said: 0", "said", "said"),
        ("self._told = {}", "_told", "told"),
        ("class F:\n    asks: str", "asks", "asks"),
        ("ASKED_AT_ONCE = 2", "ASKED_AT_ONCE", "ASKED"),
        ("nodeKnows = 1", "nodeKnows", "Knows"),
        ("known, said = 1, 2", "said", "said"),
        ("for hearing in news: ...", "hearing", "hearing"),
        ("with f() as asking: ...", "asking", "asking"),
        ("if (knew := f()): ...", "knew", "knew"),
        ("found = [saying for saying in news]", "saying", "saying"),
        ("import news as hears", "hears", "hears"),
        ("try: ...\nexcept OSError as tells: ...", "tells", "tells"),
        ("match f:\n    case [ask, *_]: ...", "ask", "ask"),
        ("match f:\n    case [_, *say]: ...", "say", "say"),
        ("match f:\n    case {1: 2, **know}: ...", "know", "know"),
    ],
)
def test_a_replaced_word_in_an_identifier_is_found(check_prose: ModuleType, text: str, name: str, word: str) -> None:
    (complaint,) = check_prose.name_complaints("x.py", text)
    assert complaint.startswith(f"x.py:{1 + text[: text.rindex(name)].count(chr(10))}: {name!r} has {word!r}: ")


@pytest.mark.parametrize(
    "words",
    [
        ("ask", "asks", "asked", "asking"),
        ("tell", "tells", "told", "telling"),
        ("hear", "hears", "heard", "hearing"),
        ("know", "knows", "knew", "knowing"),
        ("say", "says", "said", "saying"),
    ],
)
def test_every_form_of_a_word_is_found_in_identifiers(check_prose: ModuleType, words: tuple[str, ...]) -> None:
    found = [complaint for word in words for complaint in check_prose.name_complaints("x.py", f"on_{word} = 1")]
    assert len(found) == len(words), found


@pytest.mark.parametrize(
    "text",
    [
        "known, unknown, unasked, task, mask, essay, tellurium = ()",
        "position = file.tell()  # another library's name",
        "log.info('pod', asked=1)  # a key of a log line",
        'text = "the agent is told"',
    ],
)
def test_other_identifiers_pass(check_prose: ModuleType, text: str) -> None:
    assert list(check_prose.name_complaints("x.py", text)) == []
