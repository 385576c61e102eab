"""Who may import whom: scenarios -> (backends | analysis) -> sim, and heavy libraries only where they belong."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parent.parent
BELOW = {
    "sim": {"sim"},
    "backends": {"backends", "sim"},
    "analysis": {"analysis", "sim"},
    "scenarios": {"scenarios", "backends", "analysis", "sim"},
}
HOME = {
    "simpy": "sim/engine/",
    "torch": "backends/",
    "matplotlib": "analysis/",
    "ruamel": "scenarios/load.py",
}
FILES = [path for layer in BELOW for path in sorted((ROOT / layer).rglob("*.py"))]


def imports(node: ast.AST, at_start: bool = True) -> Iterator[tuple[str, bool]]:
    """The top-level packages a module imports, and whether it does so when it is itself imported."""
    if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
        return
    at_start = at_start and not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
    if isinstance(node, ast.Import):
        yield from ((name.name.split(".")[0], at_start) for name in node.names)
    elif isinstance(node, ast.ImportFrom):
        yield ("a relative import" if node.level else str(node.module).split(".")[0]), at_start
    for child in ast.iter_child_nodes(node):
        yield from imports(child, at_start)


def test_each_layer_imports_only_what_lies_below_it() -> None:
    wrong = []
    for path in FILES:
        file = path.relative_to(ROOT).as_posix()
        allowed = BELOW[file.split("/")[0]]
        for name, at_start in imports(ast.parse(path.read_text("utf-8"))):
            foreign = name in {*BELOW, "twinrail", "tests", "benchmarks", "a relative import"} - allowed
            homeless = name in HOME and not file.startswith(HOME[name])
            if foreign or homeless or (name == "matplotlib" and at_start):
                wrong.append(f"{file} imports {name}")
    assert FILES
    assert not wrong


def test_nothing_heavy_is_imported_before_it_is_used() -> None:
    """Every module but the insides of a backend, and every backend as the registry loads it."""
    modules = [
        ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
        for path in FILES
        if len(path.relative_to(ROOT).parts) < 3 or path.relative_to(ROOT).parts[0] != "backends"
    ]
    code = (
        f"import importlib, sys; [importlib.import_module(name) for name in {modules!r}]\n"
        "from backends.base import load, names; [load(name) for name in names()]\n"
        "print(*sorted({'torch', 'matplotlib', 'pandas'} & sys.modules.keys()))"
    )
    run = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert (run.stdout.strip(), run.returncode) == ("", 0), run.stderr
