"""Public names of the adapter contract without a docstring are found."""

from __future__ import annotations

from types import ModuleType
from typing import Protocol

from pdoc import doc

from tools.write_api_docs import CONTRACT, bare, undocumented


def test_every_public_name_of_the_contract_has_a_docstring() -> None:
    assert undocumented() == []


def test_the_contract_and_its_conformance_are_looked_at() -> None:
    package = doc.Module.from_name(CONTRACT)
    assert {"contract", "cluster_contract", "conformance"} <= {one.name for one in package.submodules}
    assert "AdapterConformance" in doc.Module.from_name(f"{CONTRACT}.conformance").members


def test_what_has_no_docstring_is_found() -> None:
    module = ModuleType(f"{CONTRACT}.made")

    class Documented(Protocol):
        """With a docstring."""

        def documented(self) -> None:
            """Do it."""

        def bare(self) -> None: ...

        def test_a_conformance_test(self) -> None: ...

        def _private(self) -> None: ...

    Documented.__module__ = Documented.documented.__module__ = Documented.bare.__module__ = module.__name__
    Documented.__qualname__ = "Documented"
    module.__dict__["Documented"] = Documented
    module.__dict__["__all__"] = ["Documented"]
    assert list(bare(doc.Module(module))) == [module.__name__, f"{module.__name__}.Documented.bare"]
