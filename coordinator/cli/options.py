"""Options that several verbs share."""

from __future__ import annotations

import os
import pkgutil
import re
import shlex
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click
from click.shell_completion import CompletionItem

from coordinator.cli.refusals import refusals
from coordinator.engine.run_files import RESOLVED_SCENARIO
from coordinator.scenario import ENGINES, MAX_WORKERS
from coordinator.scenario.errors import did_you_mean
from coordinator.scenario.shipped import is_name, shipped_files

if TYPE_CHECKING:
    _PathType = click.ParamType[Path]
    _TextType = click.ParamType[str]
    _CountType = click.ParamType[int | None]
else:
    # Generic to type checkers alone in the oldest click that is supported.
    _PathType = _TextType = _CountType = click.ParamType


SWARM_SCENARIOS: Final = 500
"""How many scenarios ``swarm`` runs by default."""
_DEVICES: Final = re.compile(r"([0-9]{1,18})(?:-([0-9]{1,18}))?", re.ASCII)


_SUFFIXES_OF_RATINGS: Final = (".csv", ".tsv", ".dat", ".parquet", ".jsonl", ".ndjson", ".gz", ".zst")


class ScenarioFile(_PathType):
    """A scenario: the path of a file, or the name of a shipped one, which has neither folder nor suffix.

    The value is the path. A file without a suffix is taken where no shipped scenario has its name; whether it
    exists is seen when it is read.
    """

    name = "scenario"

    def convert(self, value: str | Path, param: click.Parameter | None, ctx: click.Context | None) -> Path:
        """Return the path of the file that is meant, and say so where it is a shipped one."""
        text = os.fspath(value)
        shipped = shipped_files().get(text) if is_name(text) else None
        if shipped is None:
            self._refuse_what_is_none(Path(text), param, ctx)
            return Path(text)
        passed_over = next((here for here in (f"{text}.yaml", text) if os.path.isfile(here)), None)
        other = "" if passed_over is None else f"; for the file in this folder write ./{passed_over}"
        click.echo(f"scenario: {text}, shipped with recfleet: {shipped}{other}", err=True)
        return shipped

    def _refuse_what_is_none(
        self, path: Path, param: click.Parameter | None, ctx: click.Context | None
    ) -> None:
        """Refuse the folder of a run and a file of ratings, each with what to write in its place."""
        if path.suffix.lower() in _SUFFIXES_OF_RATINGS and path.is_file():
            command = f"recfleet init --data {shlex.quote(str(path))}"
            self.fail(
                f"{path} is no scenario; if it holds ratings, {command} writes one for them", param, ctx
            )
        if path.is_dir():
            resolved = path / RESOLVED_SCENARIO
            known = f"; the scenario of that run is {resolved}" if resolved.is_file() else ""
            self.fail(f"{path} is a folder{known}", param, ctx)

    def shell_complete(
        self, ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> list[CompletionItem]:
        """Offer the shipped scenarios that begin so and YAML files here; where there are none, any file."""
        names = [name for name in shipped_files() if name.startswith(incomplete)]
        if not names:
            return [CompletionItem(incomplete, type="file")]
        # By name: beside an item that has the shell complete files, bash drops all others.
        here = sorted(file.name for file in Path().glob("*.y*ml") if file.name.startswith(incomplete))
        return [CompletionItem(name) for name in (*names, *here)]


class ShardCount(_CountType):
    """A number of shards, or ``auto``, which is None."""

    name = "N|auto"

    def convert(
        self, value: str | int, param: click.Parameter | None, ctx: click.Context | None
    ) -> int | None:
        """Return the number; refuse what is neither."""
        if value == "auto":
            return None
        if not str(value).isdecimal() or not 1 <= int(value) <= MAX_WORKERS:
            self.fail(f"{value!r} is neither 'auto' nor a number from 1 to {MAX_WORKERS}", param, ctx)
        return int(value)


class KnownName(_TextType):
    """One of the names that a function returns; another is answered with the nearest.

    Parameters
    ----------
    kind : what is named, in a word or two.
    known : import path of the function, ``module:function``; imported when a name is there to be looked up.
    """

    name = "name"

    def __init__(self, kind: str, known: str) -> None:
        self.kind = kind
        self._known = known

    def known(self) -> Iterable[str]:
        """Return the names."""
        names: Iterable[str] = pkgutil.resolve_name(self._known)()
        return names

    def convert(self, value: str, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """Return the name; refuse one that is not known."""
        known = list(self.known())
        if value not in known:
            advice = did_you_mean(value, known, listed="there are")
            self.fail(f"there is no {self.kind} {value!r}; {advice or 'there are none at all'}", param, ctx)
        return value

    def shell_complete(
        self, ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> list[CompletionItem]:
        """Offer the names that begin so."""
        return [CompletionItem(name) for name in self.known() if name.startswith(incomplete)]


scenario_file: Final = ScenarioFile()
"""Type of an argument that says which scenario."""

scenario_name: Final = KnownName("shipped scenario", "coordinator.scenario.shipped:shipped_files")
"""Type of an option that says which shipped scenario."""

worker_count = click.IntRange(1, MAX_WORKERS)
"""Type of an option that says how many processes or threads."""

engine_option = click.option(
    "--engine",
    type=click.Choice(ENGINES),
    default=ENGINES[0],
    show_default=True,
    help="Where workers live: in processes of this host, or on a Ray cluster (extra recfleet[ray]).",
)
"""``--engine NAME``."""

address_option = click.option(
    "--address",
    metavar="HOST:PORT",
    help="Ray cluster that runs already, or 'auto'; by default RAY_ADDRESS, else Ray is started here.",
)
"""``--address HOST:PORT``, for ``--engine ray``."""

setting_option = click.option(
    "--set",
    "settings",
    multiple=True,
    metavar="KEY=VALUE",
    help="Change one setting of the scenario, such as rounds.cohort=50; may be repeated.",
)
"""``--set a.b=c``, passed on as the tuple ``settings``."""


def _load_plugins(context: click.Context, parameter: click.Parameter, given: tuple[str, ...]) -> None:
    """Load plug-ins until the end of the command."""
    if not given:
        return
    from edge.core import plugins  # noqa: PLC0415 - hashlib and more, which most command lines do without

    context.with_resource(plugins.scope())
    with refusals():
        for one in given:
            plugins.load(one)


plugin_option = click.option(
    "--plugin",
    multiple=True,
    is_eager=True,
    expose_value=False,
    callback=_load_plugins,
    metavar="FILE|MODULE",
    help="Load methods, faults or selectors of your own from a Python file or module; may be repeated.",
)
"""``--plugin FILE_OR_MODULE``: what it holds is registered while the command runs."""


sink_option = click.option(
    "--sink",
    multiple=True,
    metavar="NAME[=TARGET]",
    help="Give what the run writes to something else, too, such as 'jsonl=rows.jsonl'; may be repeated.",
)
"""``--sink NAME=TARGET``, passed on as the tuple ``sink``."""


def _in_a_folder(context: click.Context, parameter: click.Parameter, file: Path | None) -> Path | None:
    """Refuse a file that could not be written before a long run, not after it."""
    if file is not None and not file.parent.is_dir():
        raise click.BadParameter(f"there is no folder '{file.parent}'; make it first")
    if file is not None and not os.access(file.parent, os.W_OK | os.X_OK):
        raise click.BadParameter(f"the folder '{file.parent}' cannot be written to; name another")
    return file


json_option = click.option(
    "--json",
    "json_file",
    type=click.Path(path_type=Path, dir_okay=False, writable=True),
    callback=_in_a_folder,
    metavar="FILE",
    help="Write the result as JSON, too.",
)
"""``--json FILE``, passed on as ``json_file``."""

junit_option = click.option(
    "--junit",
    "junit_file",
    type=click.Path(path_type=Path, dir_okay=False, writable=True),
    callback=_in_a_folder,
    metavar="FILE",
    help="Write the verdicts as JUnit XML, too, for CI systems.",
)
"""``--junit FILE``, passed on as ``junit_file``."""

seed_option = click.option(
    "--seed", type=click.IntRange(min=0), help="Seed of the run, in place of the scenario's."
)
out_option = click.option(
    "--out",
    type=click.Path(path_type=Path),
    metavar="DIR",
    help="Directory of the run; by default runs/<scenario>-<seed>-<hash> in the current folder.",
)
overwrite_option = click.option(
    "--overwrite", is_flag=True, help="Replace the finished run that lies in the directory."
)


def duration_s(context: click.Context, parameter: click.Parameter, text: str) -> float:
    """Return the seconds of a duration; the callback of an option."""
    from device_profiles.units import UnitError, parse_duration_s  # noqa: PLC0415 - decimal and more

    try:
        return parse_duration_s(text)
    except UnitError as error:
        raise click.BadParameter(str(error)) from error


def lifetime_s(context: click.Context, parameter: click.Parameter, text: str) -> float:
    """Return how long a token is valid; the callback of an option."""
    seconds = duration_s(context, parameter, text)
    if seconds <= 0.0:
        raise click.BadParameter("a token that has expired lets nobody in; write a time above 0")
    return seconds


def device_range(context: click.Context, parameter: click.Parameter, text: str) -> tuple[int, int]:
    """Return the first and the last device of ``17`` or ``0-499``; the callback of an option."""
    match = _DEVICES.fullmatch(text.strip())
    if match is None:
        raise click.BadParameter(f"{text!r} names no devices; write 17, or 0-499")
    first = int(match[1])
    last = first if match[2] is None else int(match[2])
    if last < first:
        raise click.BadParameter(f"{text!r} ends before it begins; write {last}-{first}")
    return first, last
