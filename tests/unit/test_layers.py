"""Who may import whom: each package only those above it in the list of docs/architecture.md, lazily or not."""

from __future__ import annotations

import ast
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


def layers() -> list[str]:
    """The packages, as the page lists them: the ground first."""
    section = PAGE.read_text(encoding="utf-8").split("## Who knows whom")[1]
    return re.findall(r"^\| `(\w+)` \|", section, re.MULTILINE)


@cache
def imports() -> list[tuple[str, str, str]]:
    """File, its package, and what it imports; names of packages and modules of ours without `borealis`."""
    all_found = []
    for file in sorted(ROOT.rglob("*.py")):
        place = file.relative_to(ROOT)
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            found = [a.name for a in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom):
                assert node.level == 0, f"{place}: relative imports hide where things are"
                assert node.module is not None
                found = [f"borealis.{a.name}" for a in node.names] if node.module == "borealis" else [node.module]
            all_found += [(str(place), place.parts[0].removesuffix(".py"), name) for name in found]
    return all_found


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
