"""A relocatable Python: this process's interpreter, with its loader, its libraries and the handler's imports.

python/bin/python3          the interpreter
python/lib/                 its dynamic loader, the libraries that it and its extension modules are linked to
python/lib/python3.N/       the modules that the handler imports, compiled
"""

from __future__ import annotations

import compileall
import py_compile
import re
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

from cedana_sched.model.errors import CedanaSchedError

_LOADER = re.compile(rb"/[\w./-]*/ld-[\w.-]+\.so[.\d]*(?=\0)")
_NEEDED = (
    "cedana_sched.runtime_handler.planned_create",
    "zlib",
    "encodings.ascii",
    "encodings.latin_1",
    "encodings.utf_8",
    "traceback",
)
_PROGRAM = "import importlib, sys\nfor name in sys.argv[1:]: importlib.import_module(name)\nprint(*sorted(sys.modules))"


class InterpreterError(CedanaSchedError):
    """This process's interpreter cannot be copied."""


def copy_interpreter(folder: Path) -> list[str]:
    """Copy the interpreter to `folder`; return the command that starts it, as words relative to `folder`.

    Raises:
        InterpreterError: a library to which it is linked is missing here.
    """
    program = Path(sys.executable).resolve()
    library = folder / "lib"
    modules = library / f"python3.{sys.version_info.minor}"
    (folder / "bin").mkdir(parents=True)
    (modules / "lib-dynload").mkdir(parents=True)  # must exist, even if all modules are built in
    shutil.copy2(program, folder / "bin" / "python3")
    loader = _dynamic_loader(program)
    shutil.copy(loader, library / loader.name)
    linked = [program]
    standard = Path(sysconfig.get_path("stdlib"))
    for name in _modules_loaded_by_handler():
        for source, target in _module_files(name, standard, modules):
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(source, target)
            if source.suffix == ".so":
                linked.append(source)
    for binary in linked:
        for found in _libraries(loader, binary):
            shutil.copy(found, library / found.name)
    compile_folder(modules)
    return [f"lib/{loader.name}", "lib", "bin/python3"]


def compile_folder(folder: Path) -> None:
    """Compile modules ahead, so that no run of the handler does; the sources are not checked again."""
    unchecked = py_compile.PycInvalidationMode.UNCHECKED_HASH
    compileall.compile_dir(folder, quiet=1, stripdir=folder, invalidation_mode=unchecked)


def _modules_loaded_by_handler() -> list[str]:
    """Return the standard library's modules that the handler loads, in a process that has loaded nothing else."""
    package = Path(__file__).parents[4]
    code = f"import sys; sys.path.insert(0, {str(package)!r})\n{_PROGRAM}"
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", code, *_NEEDED], capture_output=True, text=True, check=True
    )
    return [name for name in done.stdout.split() if not name.startswith("cedana_sched")]


def _module_files(name: str, standard: Path, modules: Path) -> list[tuple[Path, Path]]:
    """Return a module's files with their targets; empty for a built-in module."""
    relative = Path(*name.split("."))
    for source in (standard / relative / "__init__.py", standard / relative.with_suffix(".py")):
        if source.is_file():
            return [(source, modules / source.relative_to(standard))]
    extension = sysconfig.get_config_var("EXT_SUFFIX")
    shared = standard / "lib-dynload" / f"{name}{extension}"
    return [(shared, modules / "lib-dynload" / shared.name)] if shared.is_file() else []


def _dynamic_loader(program: Path) -> Path:
    with program.open("rb") as file:
        found = _LOADER.search(file.read(1 << 16))
    if found is None:
        raise InterpreterError(f"{program} names no dynamic loader", remedy="run the agent from its own image")
    return Path(found.group().decode()).resolve()


def _libraries(loader: Path, binary: Path) -> list[Path]:
    listed = subprocess.run([loader, "--list", binary], capture_output=True, text=True, check=False)
    if listed.returncode:
        lines = tuple((listed.stdout + listed.stderr).splitlines())
        raise InterpreterError(f"a library that {binary} is linked to is not here", evidence=lines)
    return [Path(path) for path in re.findall(r"^\s*\S+ => (/\S+)", listed.stdout, re.MULTILINE)]
