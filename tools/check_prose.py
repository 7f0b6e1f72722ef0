"""House rules of words: those that docs/glossary.md replaces, in pages, docstrings, comments, texts and identifiers.

A part of `make lint`. Components call, watch, publish and cache; they do not ask, tell, hear or know. One concept has
one word. A quotation in backquotes is exempt, as it names what others have written. Of identifiers, only definitions
are checked: a use of another library's name is no choice of ours.
"""

from __future__ import annotations

import ast
import io
import re
import sys
import tokenize
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from tools.tracked import tracked_files

ROOT = Path(__file__).resolve().parents[1]


class Rule(NamedTuple):
    """A pattern, matched without regard to case, and the words to use instead."""

    pattern: re.Pattern[str]
    instead: str


def _rule(pattern: str, instead: str) -> Rule:
    return Rule(re.compile(rf"(?<![\w-])(?:{pattern})(?![\w-])", re.IGNORECASE), instead)


RULES = (
    _rule(r"asks?|asked|asking", "call, request, require, query"),
    _rule(r"tells?|told|telling", "report, notify, publish, distinguish"),
    _rule(r"hears?|heard|hearing", "receive, watch"),
    _rule(r"knows|knew|knowing|(?:we|it|they|who|nobody|that) know", "has, reads, caches, supports; or name the fact"),
    _rule(r"nobody|anybody|somebody|everybody|whoever", "no component, any user, an attacker: name the actor"),
    _rule(r"he|him|his|she|hers?", "they; or name the component"),
    _rule(r"(?:comes?|came|coming) back", "restart, recover, is restored"),
    _rule(r"(?:goes|go|went|going) on", "continue, proceed"),
    _rule(r"let(?:s|ting)? (?:(?:it|them|a \w+) )?go(?: of)?", "release, thaw, drop"),
    _rule(r"(?:takes?|took|taken|taking) back", "cancel, revoke, reclaim"),
    _rule(r"called off|calls? off|calling off", "cancel"),
    _rule(r"lays?|laid|lays? ready|laid ready", "write, install, prepare"),
    _rule(r"draw(?:s|n)? (?:a )?number|draws", "assign, reconcile"),
    _rule(r"doomed", "kill pending"),
    _rule(r"forgets?|forgot|forgotten", "drop, delete, archive"),
    _rule(r"believes?|believed", "assume, accept"),
    _rule(r"learns?|learned|learnt", "read, detect, receive"),
    _rule(r"settled?(?! for)", "terminal, confirmed, archived"),
    _rule(r"stumbles?", "fail"),
    _rule(r"(?:its|their|the) return(?! value| code| type)", "restore"),
    _rule(r"as long as it takes|in one's place", "say it plainly"),
)

IDENTIFIER_RULES = (
    _rule(r"asks?|asked|asking", "call, request, requested, query"),
    _rule(r"tells?|told|telling", "report, publish, print, signal"),
    _rule(r"hears?|heard|hearing", "receive, event, on_change"),
    _rule(r"knows?|knew|knowing", "has, cached, supports"),
    _rule(r"says?|said|saying", "message, output, log, report"),
)
"""For parts of identifiers, such as `heard` of `on_heard`; texts may quote what a page or a message says."""

PAGES = ("*.md", "*.yaml", "*.yml", "Makefile", ".ci/run", "*.sh", "*.txt")
PRODUCT = ("adapters/", "cedana_sched/", "demo/", "tools/", "webhooks/")
NAMED = ("adapters/", "cedana_sched/", "webhooks/")
"""Whose identifiers are checked."""

_WORDS = re.compile(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])")
"""Of an identifier: `HTTPSays` has `HTTP` and `Says`."""
_QUOTED = re.compile(r"`[^`]*`|\"[^\"\n]*\"|\]\([^)]*\)|https?://\S+")


def complaints(where: str, text: str, first_line: int = 1) -> Iterator[str]:
    """Yield every replaced word of a text, as `file:line: what`."""
    for number, line in enumerate(_QUOTED.sub(_blank, text).splitlines(), start=first_line):
        for rule in RULES:
            for match in rule.pattern.finditer(line):
                yield f"{where}:{number}: {match[0]!r}: {rule.instead}"


def _blank(quoted: re.Match[str]) -> str:
    return re.sub(r"[^\n]", "_", quoted[0])


def prose_of_page(path: str, text: str) -> Iterator[tuple[int, str]]:
    """Yield (line, prose) of a file that is not Python: a page without its code, another file's comments."""
    is_code = False
    for number, line in enumerate(text.splitlines(), start=1):
        if not path.endswith(".md"):
            comment = re.search(r"(?:^|\s)#+ (.*)", line)
            if comment is not None:
                yield number, comment[1]
            continue
        if line.startswith("```"):
            is_code = not is_code
        elif not is_code and not line.startswith("    "):
            yield number, line


def prose_of_module(text: str) -> Iterator[tuple[int, str]]:
    """Yield (line, prose) of a module: its comments, its docstrings, and texts of more than one word."""
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT:
            yield token.start[0], token.string
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and " " in node.value.strip():
            yield node.lineno, node.value


def defined_names(text: str) -> Iterator[tuple[int, str]]:
    """Yield (line, name) of every name that a module defines: functions, classes, arguments, attributes, variables."""
    for node in ast.walk(ast.parse(text)):
        match node:
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                yield node.lineno, name
            case ast.arg(arg=name):
                yield node.lineno, name
            case ast.Name(id=name, ctx=ast.Store()) | ast.Attribute(attr=name, ctx=ast.Store()):
                yield node.lineno, name
            case ast.alias(asname=str(name)) | ast.ExceptHandler(name=str(name)):
                yield node.lineno, name
            case ast.MatchAs(name=str(name)) | ast.MatchStar(name=str(name)) | ast.MatchMapping(rest=str(name)):
                yield node.lineno, name


def name_complaints(where: str, text: str) -> Iterator[str]:
    """Yield every replaced word in a name that a module defines, as `file:line: what`."""
    for line, name in sorted(defined_names(text)):
        for word in _WORDS.findall(name):
            for rule in IDENTIFIER_RULES:
                if rule.pattern.fullmatch(word):
                    yield f"{where}:{line}: {name!r} has {word!r}: {rule.instead}"


def main() -> int:
    found: list[str] = []
    for path in tracked_files(ROOT, *PAGES):
        if not path.startswith(("tests/", "requirements/")):
            for line, prose in prose_of_page(path, (ROOT / path).read_text(encoding="utf-8")):
                found += complaints(path, prose, line)
    for path in tracked_files(ROOT, "*.py"):
        if path.startswith(PRODUCT):
            if path == "tools/check_prose.py":
                continue  # it names the words
            text = (ROOT / path).read_text(encoding="utf-8")
            for line, prose in prose_of_module(text):
                found += complaints(path, prose, line)
            if path.startswith(NAMED):
                found += name_complaints(path, text)
    for complaint in found:
        print(complaint, file=sys.stderr)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
