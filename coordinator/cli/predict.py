"""``predict``: what the model of a run predicts, as a table for other tools."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import click

from coordinator.run.predicting import check_format
from coordinator.run.predicting import predict as predicted


def predict(
    *,
    run: Path,
    split: Literal["test", "validation"] | None,
    top: int,
    settings: tuple[str, ...],
    output: Path,
) -> None:
    """Write the predictions of a run."""
    check_format(output)
    rows = predicted(run, split=split, top=top, overrides=settings).write(output)
    click.echo(f"{output}: {rows:,} rows of user, item, score, rank, rating, population")
