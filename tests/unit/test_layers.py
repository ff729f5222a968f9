"""Who may import whom: each package only those above it in the list of docs/architecture.md, lazily or not.

And who may know the time, threads and chance: what a simulation runs is given them.
"""

from __future__ import annotations

import ast
import gc
import re
from functools import cache
from pathlib import Path

import pytest

import borealis

ROOT = Path(borealis.__file__).parent
PAGE = Path(__file__).parents[2] / "docs" / "architecture.md"
ONLY = {
    "pyspark": {"compile", "spark"},
    "sqlalchemy": {"databases", "kernels", "compile"},
    "fastapi": {"coordinator", "gateway"},
}
SIMULATED = {"entry", "streams", "trains", "state", "ha", "wire", "node", "coordinator", "client"}
GIVEN = {"threading", "_thread", "concurrent", "multiprocessing", "uuid", "random", "secrets"}  # by a machine
QUEUES = {"Queue", "LifoQueue", "PriorityQueue", "SimpleQueue"}  # but not queue.Full and queue.Empty
NOW = {"now", "utcnow", "today"}
SYSTEMS_OWN = {  # files of simulated packages that are never simulated, and use the system's threads or chance
    "node/metrics.py": "an HTTP server, which the system's threads answer for",
}


def layers() -> list[str]:
    """The packages, as the page lists them: the ground first."""
    section = PAGE.read_text(encoding="utf-8").split("## Who knows whom")[1]
    return re.findall(r"^\| `(\w+)` \|", section, re.MULTILINE)


class Code:
    """A file's tree, and what it imports."""

    def __init__(self, text: str) -> None:
        self.tree = ast.parse(text)
        statements: list[ast.AST] = [self.tree]  # they alone hold imports, and are few
        for one in statements:
            for block in ("body", "orelse", "finalbody", "handlers", "cases"):
                statements += getattr(one, block, [])
        self.imports = [one for one in statements if isinstance(one, ast.Import | ast.ImportFrom)]


@cache
def files() -> dict[str, Code]:
    """Each file, by its path below the package."""
    paths = sorted(ROOT.rglob("*.py"))
    gc.disable()  # it looks through ever more trees in vain
    try:
        return {path.relative_to(ROOT).as_posix(): Code(path.read_text(encoding="utf-8")) for path in paths}
    finally:
        gc.enable()


def package(file: str) -> str:
    return file.split("/", maxsplit=1)[0].removesuffix(".py")


@cache
def imports() -> list[tuple[str, str, str]]:
    """File, its package, and what it imports; names of packages and modules of ours without `borealis`."""
    all_found = []
    for file, code in files().items():
        for node in code.imports:
            found = [a.name for a in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom):
                assert node.level == 0, f"{file}: relative imports hide where things are"
                assert node.module is not None
                found = [f"borealis.{a.name}" for a in node.names] if node.module == "borealis" else [node.module]
            all_found += [(file, package(file), name) for name in found]
    return all_found


def uses(code: Code, module: str, names: set[str]) -> bool:
    """Whether code takes one of these names from a module, or from something in it, under whatever name it has it."""
    ours = set()
    for node in code.imports:
        if isinstance(node, ast.Import):
            ours |= {a.asname or a.name for a in node.names if a.name == module}
        elif isinstance(node, ast.ImportFrom) and node.module == module:
            if names & {a.name for a in node.names}:
                return True
            ours |= {a.asname or a.name for a in node.names}
    tree = ast.walk(code.tree) if ours else ()
    taken = (node for node in tree if isinstance(node, ast.Attribute) and node.attr in names)
    return any(ast.unparse(node.value).split(".")[0] in ours for node in taken)


def test_imports_point_one_way() -> None:
    order = layers()
    there = {p.name.removesuffix(".py") for p in ROOT.iterdir() if p.suffix == ".py" or (p / "__init__.py").exists()}
    assert set(order) == there - {"__init__"}
    wrong = []
    for file, mine, name in imports():
        if mine == "__init__" or name.split(".")[0] != "borealis":
            continue  # the root imports what it exports when asked for it
        theirs = name.split(".")[1] if "." in name else "the root package"
        if theirs not in order[: order.index(mine) + 1]:
            wrong.append(f"{file} imports {theirs}")
    assert not wrong


@pytest.mark.parametrize("library", ONLY)
def test_a_library_is_known_where_it_belongs(library: str) -> None:
    wrong = {file for file, mine, name in imports() if name.split(".")[0] == library and mine not in ONLY[library]}
    assert not wrong


@pytest.mark.parametrize(
    ("code", "is_used"),
    [
        ("import datetime\ndatetime.datetime.now()", True),
        ("def f():\n    from datetime import datetime as d\n    return [d.now]", True),
        ("from datetime import date\ndate.today()", True),
        ("from datetime import UTC, datetime\ndatetime.fromtimestamp(clock.now(), UTC)", False),
    ],
)
def test_what_counts_as_asking_for_the_time(code: str, is_used: bool) -> None:
    assert uses(Code(code), "datetime", NOW) == is_used


def test_only_the_clock_knows_the_time() -> None:
    wrong = {file for file, _, name in imports() if name == "time"}
    wrong |= {file for file, code in files().items() if uses(code, "datetime", NOW)}
    assert wrong == {"clock.py"}


def test_what_is_simulated_is_given_its_threads_and_its_chance() -> None:
    wrong = {file for file, _, name in imports() if name.split(".")[0] in GIVEN}
    wrong |= {file for file, code in files().items() if uses(code, "queue", QUEUES)}
    own = {file for file in wrong if package(file) in SIMULATED}
    assert own == set(SYSTEMS_OWN)
