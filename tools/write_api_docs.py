"""Writes the API documentation of the adapter contract into build/api, for authors of adapters.

`make api-docs` writes it; `make lint` checks (`--check`) that it can be built, and that every public name has a
docstring. Exempt are conformance tests and members of enums: the name of the one and the value of the other say it.
"""

from __future__ import annotations

import enum
import sys
import tempfile
import warnings
from collections.abc import Iterator
from pathlib import Path

import pdoc
from pdoc import doc, render

TARGET = Path(__file__).resolve().parents[1] / "build" / "api"
CONTRACT = "cedana_sched.adapter"
CONFORMANCE = f"{CONTRACT}.conformance"
_EXEMPT_TYPES = ("Logger", "TypeVar", "BoundLoggerLazyProxy")


def write(folder: Path) -> None:
    """Write the pages.

    Raises:
        Warning: a module cannot be imported or documented.
    """
    render.configure(docformat="google", footer_text="The contract between cedana_sched and a scheduler's adapter")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        pdoc.pdoc(CONTRACT, output_directory=folder)


def undocumented() -> list[str]:
    """Return the public names of the contract that have no docstring. Conformance is what its package exports."""
    package = doc.Module.from_name(CONTRACT)
    modules = [one for one in package.submodules if one.fullname != CONFORMANCE]
    return [name for module in (*modules, doc.Module.from_name(CONFORMANCE)) for name in bare(module)]


def bare(namespace: doc.Module | doc.Class) -> Iterator[str]:
    """Yield the public names of a module or class without a docstring, and those of its classes."""
    if not namespace.docstring:
        yield namespace.fullname
    for member in namespace.own_members if isinstance(namespace, doc.Class) else namespace.members.values():
        is_of_others = not isinstance(member, doc.Variable) and not member.taken_from[0].startswith(CONTRACT)
        if member.name.startswith("_") or is_of_others:
            continue
        if isinstance(member, doc.Class):
            yield from bare(member)
        elif not member.docstring and not isinstance(member, doc.Module) and not _explains_itself(member):
            yield member.fullname


def _explains_itself(member: doc.Doc[object]) -> bool:
    if isinstance(member, doc.Variable):
        value = member.default_value
        return isinstance(value, enum.Enum) or type(value).__name__ in _EXEMPT_TYPES
    return member.name.startswith("test_")


def main() -> int:
    if "--check" not in sys.argv[1:]:
        write(TARGET)
        print(f"wrote {TARGET.relative_to(TARGET.parents[1])}/index.html")
        return 0
    found = undocumented()
    for name in found:
        print(f"{name} has no docstring, and is part of the adapter contract", file=sys.stderr)
    with tempfile.TemporaryDirectory() as folder:
        write(Path(folder))
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
