"""Generates what comes from the code in docs/: state diagrams, exit codes, the command reference, lines of anchors.

A part is delimited by `<!-- begin NAME -->` and `<!-- end NAME -->`; see `code_anchors` for anchors. `make docs` writes
both; `make lint` and the tests compare them (`--check`), so that the pages match the code.
"""

from __future__ import annotations

import functools
import importlib
import inspect
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, get_args, get_origin

import msgspec
from typer.main import get_command

from cedana_sched.cli.doctor.check_runner import Finding
from cedana_sched.cli.exit_codes import MEANINGS
from cedana_sched.cli.kubectl import views as kubectl_views
from cedana_sched.cli.kubectl.main import app as kubectl_app
from cedana_sched.cli.main import app
from cedana_sched.cli.snapshot_views import InspectView, SnapshotView
from cedana_sched.coordinator.core.transitions import CHECKPOINT, HOLD, RESTORE, mermaid
from cedana_sched.local import views
from cedana_sched.store.check import StoreReport
from tools.code_anchors import with_lines, wrong_anchors

DOCS = Path(__file__).resolve().parents[1] / "docs"
_DRAWING = re.compile(r"^\S.*\n {8,}\S", re.MULTILINE)
_EXPLAINED = (
    "layout",
    "manifest_format",
    "commit",
    "sealing.seal_selection",
    "sealing.aead",
    "sealing.sealed_manifest_format",
    "sealing.data_keys",
    "sealing.key_file",
    "page_classification",
    "lineage",
    "stream_writer",
    "chunk_pipeline",
    "intents",
    "garbage",
    "collection_turns",
    "references",
    "capabilities",
)
_SHAPES: dict[type[msgspec.Struct], str] = {
    views.JobView: "`describe`, `submit`, `wait` and what changes a job print one, `ps` a list",
    views.RunView: "one incarnation of a job's processes",
    views.CheckpointView: "the newest checkpoint of a job",
    views.RestoreView: "the newest start of a job that has an id",
    views.EngineView: "`engine status`",
    views.GroupView: "`engine groups` prints a list",
    views.Change: "`ps --watch` prints one a line: a job that changed, or an event",
    views.EventView: "something that happened",
    SnapshotView: "`snapshots list` prints a list",
    InspectView: "`snapshots inspect`; `contents` is null where no CRIU is there to read the images",
    StoreReport: "`store check`",
    Finding: "`doctor` prints a list",
    views.Problem: "every error, on stderr",
}
_KUBECTL_SHAPES: dict[type[msgspec.Struct], str] = {
    kubectl_views.PodView: "`list` prints a list",
    kubectl_views.PodDetails: "`inspect`",
    kubectl_views.OperationView: "`status` prints a list, with `--watch` one a line",
    kubectl_views.EventView: "an Event about a pod",
    kubectl_views.HoldView: "`hold` prints a list",
    kubectl_views.PolicyView: "`policy` prints a list",
}
_COMMON = frozenset({"--state-dir", "--output", "--help", "--install-completion", "--show-completion"})
"""Options of all commands, which a page states once."""
_KUBECTL_COMMON = _COMMON | {"--namespace", "--all-namespaces", "--kubeconfig", "--context"}


def exit_codes() -> str:
    rows = (f"| {code.value} | {code.name} | {meaning} |" for code, meaning in MEANINGS.items())
    return "\n".join(["| code | name | meaning |", "|---|---|---|", *rows])


def commands() -> str:
    return "\n\n".join(_sections(get_command(app), "cedana-sched", _COMMON))


def kubectl_commands() -> str:
    return "\n\n".join(_sections(get_command(kubectl_app), "kubectl cedana", _KUBECTL_COMMON))


def _sections(command: Any, path: str, common: frozenset[str]) -> Iterator[str]:
    children = getattr(command, "commands", None)
    if children is None:
        yield _section(command, path, common)
        return
    for name, child in children.items():
        yield from _sections(child, f"{path} {name}", common)


def _section(command: Any, path: str, common: frozenset[str]) -> str:
    arguments = [parameter for parameter in command.params if parameter.param_type_name == "argument"]
    options = [parameter for parameter in command.params if _is_own_option(parameter, common)]
    usage = " ".join([path, *(["[OPTIONS]"] if options else []), *(_placeholder(argument) for argument in arguments)])
    text = re.sub(r"\s*\n\s*", " ", (command.help or "").strip())
    lines = [f"### `{path}`", "", text, "", f"    {usage}"]
    if options:
        lines += ["", "| option | meaning |", "|---|---|", *(_row(option) for option in options)]
    return "\n".join(lines)


def _is_own_option(parameter: Any, common: frozenset[str]) -> bool:
    return parameter.param_type_name == "option" and not common & set(parameter.opts)


def _placeholder(argument: Any) -> str:
    name = argument.metavar or argument.human_readable_name.upper()
    if argument.nargs == -1:
        name = f"-- {name} [ARGUMENT...]" if name == "COMMAND" else f"{name}..."
    return name if argument.required else f"[{name}]"


def _row(option: Any) -> str:
    takes_value = not getattr(option, "is_flag", False)
    spelled = ", ".join(f"`{name}{' ' + _value_name(option) if takes_value else ''}`" for name in option.opts)
    notes = [option.help.rstrip(".") if option.help else ""]
    if option.required:
        notes.append("required")
    elif default := _default(option, takes_value=takes_value):
        notes.append(f"default: {default}")
    if option.envvar:
        notes.append(f"environment: `{option.envvar}`")
    return f"| {spelled} | {'; '.join(notes)} |"


def _value_name(option: Any) -> str:
    return option.metavar or str(option.opts[0]).lstrip("-").upper()


def _default(option: Any, *, takes_value: bool) -> str:
    if isinstance(option.show_default, str):
        return option.show_default
    return f"`{option.default}`" if takes_value and option.default is not None and not option.multiple else ""


def json_shapes(shapes: Mapping[type[msgspec.Struct], str]) -> str:
    return "\n\n".join(_shape(shape, said) for shape, said in shapes.items())


def _shape(shape: type[msgspec.Struct], said: str) -> str:
    rows = (f"| `{one.encode_name}` | {_type_name(one.type)} |" for one in msgspec.structs.fields(shape))
    return "\n".join([f"**{shape.__name__}**: {said}", "", "| field | type |", "|---|---|", *rows])


def _type_name(kind: Any) -> str:
    """Return the JSON name of a type."""
    names = {str: "string", int: "integer", float: "number", bool: "boolean", type(None): "null", Any: "any"}
    if kind in names:
        return names[kind]
    origin, inner = get_origin(kind), [one for one in get_args(kind) if one is not Ellipsis]
    if origin is dict:
        return f"object of {_type_name(inner[1])}"
    if origin in {tuple, list}:
        return f"list of {_type_name(inner[0])}"
    if inner:
        return " or ".join(_type_name(one) for one in inner)
    return "string" if issubclass(kind, str) else f"{kind.__name__}"


def text_of(module: str) -> str:
    """Return a module's docstring, with drawings in code fences."""
    text = inspect.getdoc(importlib.import_module(f"cedana_sched.{module}")) or ""
    paragraphs = text.split("\n\n")
    return "\n\n".join(f"```text\n{one}\n```" if _DRAWING.search(one) else one for one in paragraphs)


PARTS: dict[str, Callable[[], str]] = {
    "checkpoint steps": lambda: f"```mermaid\n{mermaid(CHECKPOINT)}\n```",
    "hold steps": lambda: f"```mermaid\n{mermaid(HOLD)}\n```",
    "restore steps": lambda: f"```mermaid\n{mermaid(RESTORE)}\n```",
    "exit codes": exit_codes,
    "commands": commands,
    "json": functools.partial(json_shapes, _SHAPES),
    "commands of kubectl": kubectl_commands,
    "json of kubectl": functools.partial(json_shapes, _KUBECTL_SHAPES),
    "text of local.configuration": functools.partial(text_of, "local.configuration"),
    **{f"text of store.{name}": functools.partial(text_of, f"store.{name}") for name in _EXPLAINED},
}


def written(text: str) -> str:
    """Return `text` with every generated part and every anchor's line replaced."""
    for name, make in PARTS.items():
        pattern = re.compile(rf"(<!-- begin {name} -->\n).*?(<!-- end {name} -->)", re.DOTALL)
        if pattern.search(text):
            body = make()
            text = pattern.sub(lambda match, body=body: f"{match[1]}{body}\n{match[2]}", text)  # type: ignore[misc]
    return with_lines(text)


def stale(folder: Path = DOCS) -> list[Path]:
    """Return pages that differ from the generated parts."""
    return [page for page in sorted(folder.glob("*.md")) if written(page.read_text()) != page.read_text()]


def wrong(folder: Path = DOCS) -> list[str]:
    """Return the anchors that lead to no definition, as `page:line: what`."""
    pages = sorted(folder.glob("*.md"))
    return [f"docs/{page.name}:{problem}" for page in pages for problem in wrong_anchors(page.read_text())]


def main() -> int:
    pages, problems = stale(), wrong()
    for page in pages:
        if "--check" in sys.argv[1:]:
            problems.append(f"docs/{page.name} is not what the code says: run 'make docs'")
        else:
            page.write_text(written(page.read_text()))
            print(f"wrote docs/{page.name}")
    for problem in problems:
        print(problem, file=sys.stderr)
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
