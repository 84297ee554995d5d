"""``export``: the model of a finished run as an ONNX file."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import click

from coordinator.cli.refusals import refusals
from coordinator.export import read_trained
from coordinator.run_directory import write_atomically
from device_profiles.units import format_bytes
from edge.serving.compression import Compression, compress
from edge.serving.titles_file import read_titles

_PATH = click.Path(path_type=Path)


@click.command
@click.argument("run", metavar="RUN", type=_PATH)
@click.option(
    "--kind",
    type=click.Choice(["stateless"]),
    required=True,
    help="stateless: takes a history of ratings, holds nothing of any user.",
)
@click.option("--top", type=click.IntRange(min=1), default=100, show_default=True, help="Length of its list.")
@click.option("--titles", type=_PATH, metavar="FILE", help="CSV of item,title to keep in the model.")
@click.option("--int8", is_flag=True, help="Store matrices as int8 with a scale per row.")
@click.option("--fp16", is_flag=True, help="Store matrices as float16.")
@click.option("-o", "--output", type=_PATH, required=True, metavar="FILE", help="The model file to write.")
@refusals()
def export(
    *, run: Path, kind: str, top: int, titles: Path | None, int8: bool, fp16: bool, output: Path
) -> None:
    """Write the model that the run directory RUN holds as an ONNX file.

    Needs the extra: pip install 'recfleet[export]'.
    """
    if int8 and fp16:
        raise click.UsageError("--int8 and --fp16 exclude each other; leave one out")
    trained = read_trained(run)
    if titles is not None:
        info = dataclasses.replace(trained.info, titles=read_titles(titles, trained.info))
        trained = dataclasses.replace(trained, info=info)
    how: Compression = "int8" if int8 else "fp16" if fp16 else "none"
    contents = compress(trained.stateless(top), how)
    write_atomically(output, contents)
    click.echo(f"{output}: {kind}, {trained.info.n_items} items, {format_bytes(len(contents))}")
