"""``export``: the model of a finished run as an ONNX file."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import click

from coordinator.cli.options import plugin_option, setting_option
from coordinator.cli.refusals import refusals
from coordinator.export import FinishedRun, read_finished, trained_model
from coordinator.export_device import personal_model, stateless_of_anyone
from coordinator.run_directory import write_atomically
from coordinator.scenario.learning_section import method_name
from device_profiles.units import format_bytes
from edge.serving.compression import compress
from edge.serving.titles_file import read_titles

_PATH = click.Path(path_type=Path)


@click.command
@click.argument("run", metavar="RUN", type=_PATH)
@click.option(
    "--kind",
    type=click.Choice(["stateless", "recommender", "mask"]),
    required=True,
    help="stateless: takes a history of ratings, and holds nothing of any user but the mask of --device, if "
    "one is named. recommender: ranks for the user of --device. mask: the private mask of --device, alone.",
)
@click.option("--device", type=click.IntRange(min=0), help="Whose model.")
@setting_option
@click.option("--top", type=click.IntRange(min=1), default=100, show_default=True, help="Length of its list.")
@click.option("--titles", type=_PATH, metavar="FILE", help="CSV of item,title to keep in the model.")
@click.option("--int8", is_flag=True, help="Store matrices as int8 with a scale per row.")
@click.option("--fp16", is_flag=True, help="Store matrices as float16.")
@click.option("-o", "--output", type=_PATH, required=True, metavar="FILE", help="The model file to write.")
@plugin_option
@refusals()
def export(
    *,
    run: Path,
    kind: str,
    device: int | None,
    settings: tuple[str, ...],
    top: int,
    titles: Path | None,
    int8: bool,
    fp16: bool,
    output: Path,
) -> None:
    """Write the model that the run directory RUN holds as an ONNX file.

    A device's model is made from its ratings, and one with masks needs the features of the items: both are
    read where the scenario says; say where they are now with --set data.path=…

    Needs the extra: pip install 'recfleet[export]'.
    """
    if int8 and fp16:
        raise click.UsageError("--int8 and --fp16 exclude each other; leave one out")
    if device is None and kind != "stateless":
        raise click.UsageError(f"--kind {kind} is one device's; name it with --device")
    finished = read_finished(run)
    if titles is not None:
        info = dataclasses.replace(finished.info, titles=read_titles(titles, finished.info))
        finished = dataclasses.replace(finished, info=info)
    model = _model(finished, kind, device, settings, top)
    contents = compress(model, "int8" if int8 else "fp16" if fp16 else "none")
    write_atomically(output, contents)
    click.echo(f"{output}: {kind}, {finished.info.n_items} items, {format_bytes(len(contents))}")
    if kind == "stateless" and device is not None and not finished.masked:
        method = method_name(finished.learning)
        click.echo(f"the same for every device: {method} has nothing of one in a stateless model", err=True)


def _model(run: FinishedRun, kind: str, device: int | None, settings: tuple[str, ...], top: int) -> bytes:
    if kind == "stateless" and not run.masked:
        if device is not None:
            run.check_device(device)
        return trained_model(run).stateless(top)
    if device is None:
        return stateless_of_anyone(run, settings, top)
    personal = personal_model(run, device, settings)
    if kind == "mask":
        return personal.mask_alone()
    return personal.stateless(top) if kind == "stateless" else personal.recommender(top)
