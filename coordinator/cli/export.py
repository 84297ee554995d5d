"""``export``: the model of a finished run as an ONNX file."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import click

from coordinator.engine.run_files import write_atomically
from coordinator.results.export import FinishedRun, read_finished, trained_model
from coordinator.run.export_device import personal_model, stateless_of_anyone
from coordinator.scenario.registered_sections import method_name
from device_profiles.units import format_bytes
from edge.onnx.compression import compress
from edge.onnx.recommending import read_titles


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
    """Write a model of a finished run as an ONNX file."""
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
