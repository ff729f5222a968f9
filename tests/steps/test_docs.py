"""The code in the documents runs, block after block, as a reader would type it."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.core import TyperGroup
from typer.main import get_command

from borealis.cli.app import app as cli
from borealis.cli.app import loaded
from borealis.cli.sample import sample, traffic
from borealis.diagram.boxes import BOXES

ROOT = Path(__file__).parents[2]


def blocks(path: Path) -> list[str]:
    return re.findall(r"^```python\n(.*?)^```", path.read_text(), re.MULTILINE | re.DOTALL)


PAGES = [
    "docs/tour.md",
    "README.md",
    "docs/files.md",
    "docs/errors.md",
    "docs/late.md",
    "docs/revisions.md",
    "docs/bounded-delay.md",
    "docs/coming-from.md",
    *(f"docs/boxes/{page.name}" for page in sorted((ROOT / "docs/boxes").glob("*.md"))),
]


@pytest.mark.parametrize("page", [page for page in PAGES if blocks(ROOT / page)])
def test_code_blocks_run(page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, spark: object) -> None:
    monkeypatch.chdir(tmp_path)
    if page == "README.md":
        sample([Path("packets.parquet")], seconds=5)
    names: dict[str, object] = {}
    for number, code in enumerate(blocks(ROOT / page), 1):
        exec(compile(code, f"{page}, block {number}", "exec"), names)
    assert names, f"no code in {page}"
    if page == "README.md":
        assert Path("traffic.yaml").read_text() == traffic().to_yaml(), "what `borealis sample` writes is what is drawn"


def commands(text: str) -> Iterator[list[str]]:
    """The calls of `borealis` in indented and in shell blocks."""
    for line in re.sub(r"\\\n", " ", text).splitlines():
        if found := re.match(r"(?:    )?(borealis .*)", line):
            yield shlex.split(found[1].rstrip("&"), comments=True)


DOCUMENTS = sorted(str(page.relative_to(ROOT)) for page in [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")])


@pytest.mark.parametrize("page", [page for page in DOCUMENTS if list(commands((ROOT / page).read_text()))])
def test_commands_exist_with_their_options(page: str) -> None:
    app = get_command(cli)
    context = app.make_context("borealis", [], resilient_parsing=True)
    assert isinstance(app, TyperGroup)
    for words in commands((ROOT / page).read_text()):
        named = [word for word in words[1:] if not word.startswith("-")]
        assert not named or named[0] in app.commands, f"{page}: there is no command in {words}"
        command = loaded(context, app.commands[named[0]]) if named else app
        known = {option for parameter in command.params for option in parameter.opts} | {"--help", "-h"}
        given = {word.partition("=")[0] for word in words if re.match(r"--?[a-z]", word)}
        assert given <= known, f"{page}: {words} has unknown options {given - known}"
        least = sum(parameter.required for parameter in command.params)
        assert len(named) >= least, f"{page}: {words} lacks arguments"


def test_every_box_has_a_page_with_code() -> None:
    assert {f"docs/boxes/{kind}.md" for kind in BOXES} <= {page for page in PAGES if blocks(ROOT / page)}


def test_the_readme_names_both_commands_first() -> None:
    head = (ROOT / "README.md").read_text()[:300]
    assert "make demo" in head
    assert "make test" in head
