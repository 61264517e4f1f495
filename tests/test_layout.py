"""The shape of the house: packaging, who may import whom, docstrings and file lengths."""

import ast
import functools
import importlib
import importlib.util
import os
import pkgutil
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
FOLDERS = ("hlo_import", "ir", "passes", "codegen", "runtime", "driver")

MAY_IMPORT = {
    "ir": {"ir"},
    "hlo_import": {"hlo_import", "ir"},
    "passes": {"passes", "ir"},
    "codegen": {"codegen", "ir", "passes"},
    "runtime": {"runtime", "ir"},
    "driver": set(FOLDERS),
}
"""Folder -> folders it may import. ``runtime`` knows no compiler, so that a NEFF runs without one."""

JAX_MODULES = ("hlo_import/stablehlo.py", "hlo_import/quantised.py", "driver/jax_backend/", "driver/frontends/")
"""Where JAX may be imported: compiling HLO text and running a NEFF never do."""

FRAMEWORKS = {"torch": "driver/frontends/torch/"}
"""Package of an extra -> where alone it is imported."""

MAX_LINES = 500
TABLES = ("ir/hlo/", "ir/isa/", "ir/operators", "ir/reference/", "driver/options.py", "driver/errors.py")
"""Tables of rows, one per op, instruction, option or code, may be longer."""


def sources() -> list[Path]:
    return sorted(path for folder in FOLDERS for path in (ROOT / folder).rglob("*.py"))


def relative(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


@functools.cache
def parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


@functools.cache
def imported_modules(path: Path) -> list[tuple[str, int]]:
    """Every module a file names in an import, wherever it stands, but not those for type checkers only."""
    tree, found = parsed(path), list[tuple[str, int]]()
    for_checkers = {
        id(node)
        for branch in ast.walk(tree)
        if isinstance(branch, ast.If) and isinstance(branch.test, ast.Name) and branch.test.id == "TYPE_CHECKING"
        for statement in branch.body
        for node in ast.walk(statement)
    }
    for node in ast.walk(tree):
        if id(node) in for_checkers:
            continue
        if isinstance(node, ast.Import):
            found += [(alias.name, node.lineno) for alias in node.names]
        if isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{relative(path)}:{node.lineno} imports relatively"
            module = node.module or ""
            # `from neuronx_cc import ir` names a folder just as `import neuronx_cc.ir` does
            names = [f"{module}.{alias.name}" for alias in node.names] if module == "neuronx_cc" else [module]
            found += [(name, node.lineno) for name in names]
    return found


def test_folders_import_only_whom_they_may() -> None:
    wrong = []
    for path in sources():
        allowed = MAY_IMPORT[relative(path).split("/")[0]]
        for name, line in imported_modules(path):
            parts = name.split(".")
            if parts[0] == "neuronx_cc" and len(parts) > 1 and parts[1] in FOLDERS and parts[1] not in allowed:
                wrong.append(f"{relative(path)}:{line} imports {name}")
    assert not wrong, "\n".join(wrong)


def test_jax_and_xdsl_stay_where_they_belong() -> None:
    wrong = []
    for path in sources():
        for name, line in imported_modules(path):
            package = name.split(".")[0]
            if package in ("jax", "jaxlib") and not relative(path).startswith(JAX_MODULES):
                wrong.append(f"{relative(path)}:{line} imports {name}")
            if package in FRAMEWORKS and not relative(path).startswith(FRAMEWORKS[package]):
                wrong.append(f"{relative(path)}:{line} imports {name}")
            if package == "xdsl" and not relative(path).startswith("ir/"):
                wrong.append(f"{relative(path)}:{line} imports {name}")
    assert not wrong, "\n".join(wrong)


def test_modules_say_what_they_are_for() -> None:
    def is_guard(tree: ast.Module) -> bool:
        return all(isinstance(statement, ast.If) for statement in tree.body)

    trees = {relative(path): parsed(path) for path in sources()}
    silent = [name for name, tree in trees.items() if not ast.get_docstring(tree) and not is_guard(tree)]
    assert not silent, silent


def test_files_are_short() -> None:
    lengths = {relative(path): len(path.read_text().splitlines()) for path in sources()}
    long = {name: lines for name, lines in lengths.items() if lines > MAX_LINES and not name.startswith(TABLES)}
    assert not long, long


def imports_of(path: Path) -> set[str]:
    """Modules, and packages, of the house that a file names in an import anywhere, those for type checkers included."""
    found = set()
    for node in ast.walk(parsed(path)):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("neuronx_cc"):
            found |= {node.module or "", *(f"{node.module}.{alias.name}" for alias in node.names)}
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
    return found


def circles(edges: dict[str, set[str]]) -> list[list[str]]:
    """The strongly connected parts of more than one module."""
    orders: list[str] = []
    for graph in (edges, {name: {other for other, names in edges.items() if name in names} for name in edges}):
        todo = list(edges) if graph is edges else orders[::-1]
        seen: set[str] = set()
        parts = []
        for root in todo:
            part: list[str] = []
            stack = [(root, iter(sorted(graph[root])))] if root not in seen else []
            seen.add(root)
            while stack:
                other = next((other for other in stack[-1][1] if other not in seen), None)
                if other is None:
                    part.append(stack.pop()[0])
                else:
                    seen.add(other)
                    stack.append((other, iter(sorted(graph[other]))))
            parts.append(part)
        orders = [name for part in parts for name in part]
    return [sorted(part) for part in parts if len(part) > 1]


def test_no_modules_import_each_other() -> None:
    """Neither at once nor late nor for type checkers: what two need stands in a third."""
    paths = {
        ".".join(("neuronx_cc", *path.relative_to(ROOT).with_suffix("").parts)).removesuffix(".__init__"): path
        for path in sources()
    }
    edges = {name: (imports_of(path) & paths.keys()) - {name} for name, path in paths.items()}
    assert circles(edges) == []


def test_circles_are_found() -> None:
    assert circles({"a": {"b"}, "b": {"c", "d"}, "c": {"a"}, "d": {"d2"}, "d2": set()}) == [["a", "b", "c"]]
    assert circles({"a": {"b", "c"}, "b": {"c"}, "c": set()}) == []


HARDWARE_WORDS = re.compile(r"\b(ns|us|GHz|B/ns|GB/s|bytes a partition|cycles?|hardware sheet)\b")
HARDWARE_NAMES = re.compile(r"_NS|BYTES|COLUMNS|ROWS|LANES|BANK|RUN|CYCLE|GHZ|PARTITIONS")


def numbers_of(text: str) -> Iterator[str]:
    """Constants of a module that are plain numbers and sizes, rates or times of hardware by name or docstring."""
    body = ast.parse(text).body
    for node, after in zip(body, [*body[1:], None], strict=True):
        if not isinstance(node, ast.Assign | ast.AnnAssign) or node.value is None:
            continue
        targets = node.targets if isinstance(node, ast.Assign) else [node.target]
        names = [name.id for target in targets for name in ast.walk(target) if isinstance(name, ast.Name)]
        parts = list(ast.walk(node.value))
        plain = (ast.Constant, ast.BinOp, ast.UnaryOp, ast.Tuple, ast.operator, ast.unaryop, ast.expr_context)
        number = any(isinstance(part, ast.Constant) and isinstance(part.value, int | float) for part in parts)
        if not number or not all(isinstance(part, plain) for part in parts):
            continue
        doc = ""
        if isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant):
            doc = str(after.value.value)
        shares = isinstance(node.value, ast.Tuple) and all(name.endswith(("SHARE", "SHARES")) for name in names)
        if not shares and (HARDWARE_WORDS.search(doc) or any(map(HARDWARE_NAMES.search, names))):
            yield from names


def test_numbers_of_the_hardware_stand_in_the_machine_description() -> None:
    found = {}
    for path in sources():
        if relative(path).startswith(("codegen/", "passes/")):
            names = set(numbers_of(path.read_text()))
            found[relative(path)] = names
    assert {path: names for path, names in found.items() if names} == {}


def test_numbers_of_the_hardware_are_found() -> None:
    text = 'LONG_RUN = 2048\nTILE = 4 * 3\n"""Cycles."""\nWAIT: float = -1.5\n"""In ns."""\n_A, _GHZ = 1, 1.4\nOK = 3\n'
    assert set(numbers_of(text)) == {"LONG_RUN", "WAIT", "_A", "_GHZ"}
    assert not set(numbers_of("ROWS_SHARE = (1, 2)\nMOST_ROWS = 2 * PARTITIONS\nNAMES = {'ROWS': 1}"))


def packages_in_folders() -> set[str]:
    inits = {path.parent.relative_to(ROOT) for path in sources() if path.name == "__init__.py"}
    data = {path.parent.relative_to(ROOT) for folder in FOLDERS for path in (ROOT / folder).rglob("*.toml")}
    return {"neuronx_cc"} | {".".join(("neuronx_cc", *path.parts)) for path in inits | data}


def test_every_package_is_listed() -> None:
    """A forgotten subpackage would be missing from wheels while editable installs still see it."""
    listed = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["packages"]
    assert len(listed) == len(set(listed))
    assert set(listed) == packages_in_folders()


def test_every_folder_with_code_is_a_package() -> None:
    loose = {relative(path.parent) for path in sources() if not (path.parent / "__init__.py").exists()}
    assert not loose, loose


@pytest.mark.parametrize("folder", FOLDERS)
def test_folder_names_are_not_importable(folder: str) -> None:
    """From the checkout ``import ir`` would make a second copy of every class; it must fail and say what to write."""
    run = subprocess.run([sys.executable, "-c", f"import {folder}"], cwd=ROOT, capture_output=True, text=True)
    assert run.returncode == 1
    assert f"import this package as neuronx_cc.{folder}" in run.stderr
    assert folder not in sys.modules


def test_the_package_is_there_in_a_bare_checkout() -> None:
    """Links that git keeps give every tool ``neuronx_cc.ir``; whichever way a module is found, it is there once."""
    for folder in FOLDERS:
        link = ROOT / "neuronx_cc" / folder
        assert link.is_symlink()
        assert os.readlink(link) == f"../{folder}"
    program = (
        "import sys, neuronx_cc.ir.errors, neuronx_cc.driver.cli\n"
        "files = [m.__file__ for n, m in sys.modules.items() if n.startswith('neuronx_cc') and m.__file__]\n"
        "from pathlib import Path\n"
        "assert len({Path(f).resolve() for f in files}) == len(files) > 5, files\n"
        "print(neuronx_cc.ir.errors.__file__)"
    )
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    # without site's editable finder: as a checkout that nothing was installed from
    program = "import sys; sys.meta_path = [f for f in sys.meta_path if 'ditable' not in str(f)]\n" + program
    run = subprocess.run([sys.executable, "-c", program], cwd=ROOT, env=environment, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    assert Path(run.stdout.strip()).resolve() == ROOT / "ir" / "errors.py"


def test_every_module_imports() -> None:
    """Also shows that the layout is complete: each file is reachable under the package's name."""
    missing = tuple(place for package, place in FRAMEWORKS.items() if not importlib.util.find_spec(package))
    expected = {
        ".".join(("neuronx_cc", *path.relative_to(ROOT).with_suffix("").parts))
        for path in sources()
        if path.name != "__init__.py" and not relative(path).startswith(missing)
    }
    found = set()
    for folder in FOLDERS:
        package = importlib.import_module(f"neuronx_cc.{folder}")
        found |= {info.name for info in pkgutil.walk_packages(package.__path__, package.__name__ + ".")}
    assert expected <= found, expected - found
    for name in sorted(expected):
        if not name.endswith(".__main__"):
            importlib.import_module(name)


def test_package_needs_no_jax_to_import_and_run() -> None:
    program = (
        "import sys, neuronx_cc, neuronx_cc.ir.hlo, neuronx_cc.hlo_import, neuronx_cc.passes, neuronx_cc.runtime\n"
        "assert 'jax' not in sys.modules and 'jaxlib' not in sys.modules"
    )
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert run.returncode == 0, run.stderr


def test_plain_import_is_light() -> None:
    program = "import sys, neuronx_cc; print(sorted(m for m in ('numpy', 'xdsl', 'jax', 'torch') if m in sys.modules))"
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert run.stdout.strip() == "[]", run.stdout + run.stderr
