"""The page on Python does what it says, in the order in which it stands, as a notebook would."""

from __future__ import annotations

import asyncio
import os
import re
from pathlib import Path
from typing import Any

import pytest

from edge.core import plugins

DOCS = Path(__file__).parents[2] / "docs"
BLOCK = re.compile(r"```(python|text)\n(.*?)```", re.DOTALL)


def _cells(*, on_movielens: bool) -> list[tuple[str, str | None]]:
    """Return each cell of the page with the output that the page shows."""
    blocks = BLOCK.findall((DOCS / "python.md").read_text(encoding="utf-8"))
    cells: list[tuple[str, str | None]] = []
    for language, text in blocks:
        if language == "text":
            cells[-1] = (cells[-1][0], text)
        elif ("ml-100k" in text) <= on_movielens:
            cells.append((text, None))
    return cells


def _execute(cells: list[tuple[str, str | None]], capsys: pytest.CaptureFixture[str]) -> str:
    """Execute cells in one namespace, within an event loop; return what was printed."""
    printed = []

    async def notebook() -> None:
        names: dict[str, Any] = {}
        for text, output in cells:
            exec(compile(text, "python.md", "exec"), names)
            shown = capsys.readouterr().out
            printed.append(shown)
            if output is not None:
                assert shown == output

    with plugins.scope():
        asyncio.run(notebook())
    return "".join(printed)


@pytest.mark.slow
def test_the_cells_of_the_page_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    printed = _execute(_cells(on_movielens=False), capsys)
    assert "held round.completed: rate == 100%" in printed
    assert "True True" in printed
    assert "{'rounds.cohort': '20'} 2" in printed


@pytest.mark.slow
def test_an_own_method_beside_fedrecon_on_movielens(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    data = os.environ.get("RECFLEET_DATA")
    if data is None or not (Path(data) / "ml-100k").is_dir():
        pytest.skip("needs ml-100k in the folder that RECFLEET_DATA names")
    monkeypatch.chdir(tmp_path)
    tutorial = (DOCS / "adding-an-algorithm.md").read_text(encoding="utf-8")
    (sample,) = re.findall(r"`biases.py`:\n\n```python\n(.*?)```", tutorial, re.DOTALL)
    Path("biases.py").write_text(sample, encoding="utf-8")
    Path("ml-100k").symlink_to(Path(data) / "ml-100k")
    printed = _execute([("import recfleet", None), *_cells(on_movielens=True)[-2:-1]], capsys)
    rows = {line.split()[0]: line for line in printed.splitlines()[1:]}
    assert rows.keys() == {"fedrecon", "biases"}
    lowest = {name: float(re.findall(r"\d\.\d{4}", row)[0]) for name, row in rows.items()}
    # Predicting the mean rating everywhere gives 1.12.
    assert all(0.9 < value < 1.0 for value in lowest.values()), printed
