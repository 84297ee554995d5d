"""``recommend``: what to try next, from a model file and a file of ratings."""

from __future__ import annotations

from pathlib import Path

import click
from rich.table import Table

from coordinator.cli.consoles import console
from edge.onnx.loading import load_model
from edge.onnx.recommending import check_kind, read_history, read_titles
from edge.onnx.recommending import recommend as recommendations


def recommend(*, model: Path, ratings: Path, top: int, titles: Path | None, skip_unknown: bool) -> None:
    """Print recommendations for a file of ratings, as a table."""
    loaded = load_model(model)
    check_kind(loaded)
    history = read_history(ratings, loaded.info, skip_unknown=skip_unknown)
    names = loaded.info.titles if titles is None else read_titles(titles, loaded.info)
    found = recommendations(loaded, history, top)
    if history.skipped:
        shown = ", ".join(map(_printable, history.skipped))
        click.echo(f"left out, unknown to the model: {shown}", err=True)
    labels = list(loaded.info.places())
    table = Table()
    for heading in ("rank", "item", *(("title",) if names is not None else ()), "predicted rating"):
        table.add_column(heading, overflow="fold", justify="left" if heading == "title" else "right")
    for rank, (item, score) in enumerate(found, start=1):
        title = () if names is None else (_printable(names[item]),)
        table.add_row(str(rank), _printable(labels[item]), *title, f"{score:.3f}")
    console().print(table)


def _printable(text: str) -> str:
    """Return text without what could steer the terminal: ids and titles may come from a stranger's file."""
    return "".join(
        character if character.isprintable() else "\N{REPLACEMENT CHARACTER}" for character in text
    )
