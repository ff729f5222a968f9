"""The code in the documents runs, block after block, as a reader would type it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from borealis.diagram.boxes import BOXES

ROOT = Path(__file__).parents[2]


def blocks(path: Path) -> list[str]:
    return re.findall(r"^```python\n(.*?)^```", path.read_text(), re.MULTILINE | re.DOTALL)


PAGES = [
    "docs/tour.md",
    "README.md",
    "docs/files.md",
    *(f"docs/boxes/{page.name}" for page in sorted((ROOT / "docs/boxes").glob("*.md"))),
]


@pytest.mark.parametrize("page", [page for page in PAGES if blocks(ROOT / page)])
def test_code_blocks_run(page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, spark: object) -> None:
    monkeypatch.chdir(tmp_path)
    if page == "README.md":
        _packets(tmp_path / "packets.parquet")
    names: dict[str, object] = {}
    for number, code in enumerate(blocks(ROOT / page), 1):
        exec(compile(code, f"{page}, block {number}", "exec"), names)
    assert names, f"no code in {page}"


def test_every_box_has_a_page_with_code() -> None:
    assert {f"docs/boxes/{kind}.md" for kind in BOXES} <= {page for page in PAGES if blocks(ROOT / page)}


def _packets(path: Path) -> None:
    import numpy as np
    import pyarrow as pa
    import pyarrow.parquet as pq

    n = 1_000
    ts = pa.array(np.arange(n) * 50_000, pa.timestamp("us", "UTC"))
    table = {
        "ts": ts,
        "src": ["a", "b"] * (n // 2),
        "dst": ["c"] * n,
        "bytes": pa.array(np.arange(n) % 1500, pa.int32()),
    }
    pq.write_table(pa.table(table), path)


def test_the_readme_names_both_commands_first() -> None:
    head = (ROOT / "README.md").read_text()[:300]
    assert "make demo" in head
    assert "make test" in head
