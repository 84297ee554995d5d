"""The command line: every verb with its arguments, options and help, and where its work is.

Only what a command line needs is imported here, so that help, completion and a refusal of what was written
come at once. The work of a verb, and numpy and pydantic with it, is imported when the verb is run.
"""

from __future__ import annotations

import functools
import importlib
import pkgutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeAlias

import click
from click.shell_completion import CompletionItem

from coordinator.cli.options import (
    SWARM_SCENARIOS,
    KnownName,
    ShardCount,
    address_option,
    device_range,
    duration_s,
    engine_option,
    json_option,
    junit_option,
    lifetime_s,
    out_option,
    overwrite_option,
    plugin_option,
    scenario_file,
    scenario_name,
    seed_option,
    setting_option,
    sink_option,
    worker_count,
)
from coordinator.cli.refusals import refusals
from coordinator.engine.run_files import REPORT
from coordinator.scenario import DEFAULT_FLEET
from coordinator.scenario.errors import did_you_mean
from coordinator.service.admission.limits import ArrivalLimits
from device_profiles import CATALOGUE_SECTIONS

__all__ = ["Settings", "VerbWork", "cli"]

_PATH: Final = click.Path(path_type=Path)
_FOLDER: Final = click.Path(path_type=Path, file_okay=False)
_FILE: Final = click.Path(path_type=Path, exists=True, dir_okay=False)
_FILE_OR_FOLDER: Final = click.Path(path_type=Path, exists=True)

Declaration: TypeAlias = Callable[[], None]
"""A function without statements: its name is that of a verb, its docstring the help."""


class VerbWork:
    """The work of a verb, as the callback of its command: imported when the verb is run.

    Parameters
    ----------
    target : ``module:function``. The function takes the values of all arguments and options by name, and
        returns the exit code, or None for 0.
    declaration : of the verb.
    """

    def __init__(self, target: str, declaration: Declaration) -> None:
        self.target = target
        functools.update_wrapper(self, declaration)

    def __call__(self, **values: Any) -> object:
        """Do the work; errors of the user's making become messages."""
        with refusals():
            return pkgutil.resolve_name(self.target)(**values)


def works_in(target: str) -> Callable[[Declaration], VerbWork]:
    """Return a decorator that makes a declaration the :class:`VerbWork` of ``target``."""
    return functools.partial(VerbWork, target)


@dataclass
class Settings:
    """Options that stand before the verb."""

    debug: bool = False


class Verbs(click.Group):
    """The verbs, in the order in which they are declared."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names of all verbs."""
        return list(self.commands)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the list of verbs with the whole first sentence of each one's help."""
        with formatter.section("Verbs"):
            formatter.write_dl([(name, _summary(verb)) for name, verb in self.commands.items()])

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Offer verbs, with the whole first sentence of each one's help, and options."""
        verbs = [
            CompletionItem(name, help=_summary(verb))
            for name, verb in self.commands.items()
            if name.startswith(incomplete)
        ]
        return [*verbs, *click.Command.shell_complete(self, ctx, incomplete)]

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the verb that was written, and name the nearest one if there is none."""
        if (
            args
            and args[0] not in self.commands
            and not args[0].startswith("-")
            and not ctx.resilient_parsing
        ):
            hint = did_you_mean(args[0], self.commands) or f"there are: {', '.join(self.commands)}"
            raise click.UsageError(f"unknown verb {args[0]!r}; {hint}", ctx)
        return super().resolve_command(ctx, args)


class FileVerbs(Verbs):
    """Verbs of which ``show`` is meant where a file stands in place of one."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Write ``show`` before what is no verb and no help."""
        if args and args[0] not in (*self.commands, *ctx.help_option_names):
            args = ["show", *args]
        return super().parse_args(ctx, args)

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Offer verbs, options and files."""
        return [*super().shell_complete(ctx, incomplete), CompletionItem(incomplete, type="file")]


def _summary(verb: click.Command) -> str:
    return verb.get_short_help_str(limit=1000)


def _print_version(context: click.Context, parameter: click.Parameter, wanted: bool) -> None:
    if not wanted:
        return
    metadata = importlib.import_module("importlib.metadata")  # 30 ms that only this option needs
    try:
        click.echo(f"recfleet {metadata.version('recfleet')}")
    except metadata.PackageNotFoundError:
        click.echo("recfleet, not installed (run from a source tree)")
    context.exit()


@click.group(
    cls=Verbs,
    subcommand_metavar="VERB [OPTIONS] …",
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog="To begin: recfleet run quickstart; recfleet scenarios lists what else is shipped, recfleet init "
    "writes a scenario of your own.\n\n"
    "Exit codes: 0 it worked and every threshold held; 1 internal error; 2 invalid scenario or usage; "
    "3 a threshold was missed, or two runs differ; 4 interrupted.",
)
@click.option("--debug", is_flag=True, help="Print the traceback of an internal error instead of filing it.")
@click.option(
    "--version",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_print_version,
    help="Print the version and exit.",
)
@click.pass_obj
def cli(settings: Settings, debug: bool) -> None:
    """Run a federated recommender on a fleet of simulated devices."""
    settings.debug = debug


@cli.command
@click.argument("scenario", type=scenario_file)
@setting_option
@seed_option
@out_option
@overwrite_option
@click.option(
    "--clock",
    type=click.Choice(["virtual", "real"]),
    default="virtual",
    show_default=True,
    help="'real' runs the coordinator and all devices of the fleet here, with real sockets between them.",
)
@click.option(
    "--shards",
    type=ShardCount(),
    default="1",
    show_default=True,
    help="Processes that simulate the devices, or 'auto': one a processor where the scenario allows it. What "
    "comes out does not depend on it.",
)
@engine_option
@address_option
@click.option(
    "--watch",
    is_flag=True,
    help="Show the run on a page that this command serves, as it goes on and after it.",
)
@click.option(
    "--watch-port",
    type=click.IntRange(0, 65535),
    help="Port of that page on this host; by default the system chooses.",
)
@click.option("--watch-exit", is_flag=True, help="End with the run; by default the page stays until Ctrl-C.")
@click.option("--quiet", is_flag=True, help="Print only the run directory, and the thresholds it missed.")
@click.option("--plain", is_flag=True, help="Show progress as lines even in a terminal.")
@click.option("--details", is_flag=True, help="Print the tables by device class, network and stage, too.")
@json_option
@junit_option
@sink_option
@plugin_option
@works_in("coordinator.cli.run:run")
def run() -> None:
    """Run a scenario and say whether its thresholds held.

    SCENARIO is a file, or the name of a shipped scenario: 'recfleet scenarios' lists them. Progress goes to
    standard error; the summary, the verdicts and the path of the run directory go to standard output. Ctrl-C
    ends the run in order: what was finished by then stays readable. A section 'sweep' is left alone: the
    scenario is run as it is written.

    The summary begins with what one asks of a run: promises, rounds, waste, bytes, the model, and advice,
    each piece with the setting to change.

    With --watch a browser on this host can look on, at the address that is printed first. When the run has
    ended the page stays until Ctrl-C; the exit code is that of the run. --watch-exit ends it with the run.
    """


@cli.command
@click.option(
    "--copy",
    "copied",
    multiple=True,
    type=scenario_name,
    metavar="NAME",
    help="Write the file of this scenario to the current folder, and those that it extends; may be repeated.",
)
@works_in("coordinator.cli.shipped:scenarios")
def scenarios() -> None:
    """List the shipped scenarios, or copy one to change it.

    Each line says about how long a run takes, what the scenario is, and what it needs: data to be downloaded
    first, or extras of recfleet.
    """


@cli.group(cls=FileVerbs)
def data() -> None:
    """Show what a file of ratings holds and the YAML to read it, or prepare it for many runs.

    'recfleet data FILE' is 'recfleet data show FILE'.
    """


@data.command("show")
@click.argument("file", type=_FILE_OR_FOLDER)
@setting_option
@plugin_option
@works_in("coordinator.cli.data:show")
def show_data() -> None:
    """Show what a file of ratings holds, and the YAML to read it.

    FILE is a file or a folder of parts: CSV or other delimited text, JSON lines, Parquet, compressed or not.
    How it is read can be given as in a scenario, such as --set data.columns.user=2 or --set data.decimal=,.
    """


@data.command("prepare")
@click.argument("file", type=_FILE_OR_FOLDER)
@click.option(
    "-o", "--output", "target", required=True, type=_FOLDER, metavar="DIR", help="The folder to write."
)
@setting_option
@plugin_option
@works_in("coordinator.cli.data:prepare")
def prepare_data() -> None:
    """Write ratings to a folder as Parquet sorted by user, and show the YAML to read it.

    Runs from the folder have the results of runs from FILE. FILE, and how it is read, are as for 'recfleet
    data'; it may be larger than memory.
    """


@cli.command
@click.option(
    "--data",
    type=_FILE_OR_FOLDER,
    metavar="PATH",
    help="The ratings: a file or folder that 'recfleet data' can read; made up by default.",
)
@click.option(
    "--fleet",
    type=KnownName("fleet", "device_profiles.catalogue:fleet_names"),
    metavar="MIX",
    help=f"The fleet, by default {DEFAULT_FLEET}; 'recfleet profiles list fleets' shows them.",
)
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE",
    help="Write there, by default scenario.yaml; a file that is there is never replaced.",
)
@click.option(
    "--set",
    "settings",
    multiple=True,
    metavar="KEY=VALUE",
    help="How the ratings are read, as for 'recfleet data', such as data.columns.user=2; may be repeated.",
)
@click.option("--algorithm", metavar="NAME", help="Write a method of your own instead: NAME.py, NAME.yaml.")
@click.option("--fault", metavar="NAME", help="Write a fault of your own.")
@click.option("--selector", metavar="NAME", help="Write a selector of your own: who is invited.")
@click.option("--reader", metavar="NAME", help="Write a reader of your own: ratings in any format.")
@click.option("--sink", metavar="NAME", help="Write a sink of your own: where results go as they come.")
@works_in("coordinator.cli.init:init")
def init() -> None:
    """Write a scenario to begin with, for your ratings or without; or a plug-in.

    It runs as it is, and its comments say what to change. The ratings are read, so that the size of a round
    suits the number of users.

    A plug-in is a Python file, which passes its checks, and a scenario that uses it. Change both.
    """


@cli.command
@click.argument("files", nargs=-1, required=True, metavar="SCENARIO…", type=scenario_file)
@click.option(
    "--data",
    type=click.Choice(["first", "full"]),
    default="first",
    show_default=True,
    help="How much of the ratings to read: the first rows of every file, or all.",
)
@setting_option
@plugin_option
@works_in("coordinator.cli.scenarios:validate")
def validate() -> None:
    """Check scenario files and show every error.

    Each error is shown as file:line:column, the path of the key, and what to write instead. Profiles and
    files that a scenario names are looked up, too, ratings are opened, and every cell of a sweep is checked.
    Exits with 2 if anything is wrong.
    """


@cli.command
@click.argument("file", metavar="SCENARIO", type=scenario_file)
@setting_option
@plugin_option
@works_in("coordinator.cli.scenarios:show")
def show() -> None:
    """Print a scenario with all of its defaults, as YAML.

    What it extends is merged into it, and every value has its unit. The output is a scenario that asks for
    the same run. Whether the files that it names exist is not checked. With secure aggregation, what it comes
    to (graph, threshold, ring) follows as comments, and so do the cells of a sweep.
    """


@cli.command
@click.argument("files", nargs=-1, required=True, metavar="SCENARIO…", type=scenario_file)
@click.option(
    "--check", is_flag=True, help="Write nothing; exit with 3 if a file is not in the newest format."
)
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path, allow_dash=True, dir_okay=False),
    metavar="FILE",
    help="Write there, '-' for standard output; by default each file is rewritten where it is.",
)
@plugin_option
@works_in("coordinator.cli.upgrade:upgrade")
def upgrade() -> None:
    """Rewrite scenario files in the newest format.

    What a file leaves unsaid, and its old format read differently, is written out, so that it asks for the
    same run as before. All else stays as it is, comments and layout included. Where files extend each other,
    name all of them in one command.
    """


@cli.command
@plugin_option
@click.option(
    "--page",
    type=click.Choice(["scenarios", "metrics"]),
    help="Print a page of the reference in Markdown instead: of scenario files, or of metrics and tables.",
)
@works_in("coordinator.cli.scenarios:schema")
def schema() -> None:
    """Print the JSON Schema of scenario files, for editors.

    Scenarios name it in their first line; write it beside them: 'recfleet schema > recfleet.schema.json'.
    Schema and pages have the methods, faults and selectors of plug-ins that are installed or named.
    """


@cli.command
@plugin_option
@json_option
@works_in("coordinator.cli.plugins:plugins")
def plugins() -> None:
    """List methods, faults and selectors, and their origin.

    Built-in ones come from recfleet, others from installed packages (entry points) or from --plugin. The hash
    is of the source; that of a plug-in which a run uses counts for the run's own.
    """


@cli.command
@click.argument("what", metavar="NAME|FILE")
@plugin_option
@works_in("coordinator.cli.check_plugin:check_plugin")
def check_plugin() -> None:
    """Check that a method, fault or selector keeps the rules.

    NAME is one that 'recfleet plugins' lists; of a FILE everything in it is checked. Faults are run in small
    scenarios, selectors draw from a small fleet, methods are given the data of single clients and of many.
    Exits with 2 if anything is wrong.
    """


@cli.group
def profiles() -> None:
    """Devices, networks and fleets, with their sources."""


_profile_kind = click.Choice(CATALOGUE_SECTIONS)
_catalogue_option = click.option(
    "--profiles",
    "extra",
    multiple=True,
    metavar="FILE",
    type=_PATH,
    help="A catalogue file of your own, laid over the shipped one; may be repeated.",
)


@profiles.command("list")
@click.argument("kind", required=False, type=_profile_kind)
@_catalogue_option
@works_in("coordinator.cli.profiles:list_profiles")
def list_profiles() -> None:
    """List all profiles, with how many of their numbers are measured, or the names of one KIND of them."""


@profiles.command("show")
@click.argument("name")
@click.option("--kind", type=_profile_kind, help="Which profile is meant where kinds share a name.")
@_catalogue_option
@works_in("coordinator.cli.profiles:show_profile")
def show_profile() -> None:
    """Print every value of the profile NAME, whether it is measured or assumed, and where it comes from."""


@profiles.command("fit")
@click.argument("tables", nargs=-1, required=True, metavar="TABLE…", type=_PATH)
@click.option("-o", "--output", type=_PATH, required=True, metavar="FILE", help="The profile file to write.")
@click.option(
    "--report",
    type=_PATH,
    metavar="FILE",
    help="Write how well it fits: HTML with charts, or Markdown (.md).",
)
@click.option(
    "--from",
    "source",
    type=click.Choice(["table", "firebase", "otel", "har", "curl"]),
    help="What the files are; told by their contents if left out.",
)
@click.option("--device", metavar="NAME", help="The device of all rows.")
@click.option("--class", "device_class", metavar="NAME", help="The class of device of all rows.")
@click.option("--network", metavar="NAME", help="The network of all rows.")
@_catalogue_option
@works_in("coordinator.cli.profiles:fit_profiles")
def fit_profiles() -> None:
    """Fit profiles to the telemetry of real devices.

    TABLE is a table of transfers, compute tasks and check-ins (Parquet or CSV), as 'recfleet telemetry'
    writes it, or an export of Firebase Performance Monitoring, OpenTelemetry spans, a HAR file or timings of
    curl. What the data cannot tell is taken from the nearest profile of the catalogue, and marked so.
    """


@cli.command
@click.argument("scenario", type=scenario_file)
@setting_option
@click.option("--jobs", type=worker_count, metavar="N", help="Runs at a time; by default one a processor.")
@engine_option
@address_option
@click.option(
    "--out",
    type=_PATH,
    metavar="DIR",
    help="Directory of the sweep; by default runs/<scenario>-sweep in the current folder.",
)
@click.option("--all", "everything", is_flag=True, help="Print every figure, not only those of thresholds.")
@json_option
@junit_option
@plugin_option
@works_in("coordinator.cli.sweep:sweep")
def sweep() -> None:
    """Run every cell of a scenario's sweep, and print one table.

    All cells are checked before the first is run. Finished runs in DIR are kept, so the same command goes on
    where an earlier one was stopped. The table has a row per cell and a column per threshold; sweep.json and
    sweep.csv in DIR have every figure.
    """


@cli.command
@click.argument("scenario", type=scenario_file)
@click.option(
    "--minimise",
    metavar="FIGURE",
    help="What to make small, such as 'round.duration p95', 'simulated time' or 'up bytes'.",
)
@click.option("--maximise", metavar="FIGURE", help="What to make large, such as 'model.ndcg@10 last'.")
@click.option(
    "--vary",
    multiple=True,
    metavar="KEY=RANGE",
    help="A key and its range, such as rounds.cohort=10..100, 'rounds.deadline=5 s..60 s', "
    "learning.learning_rate=0.001..0.1 log, or a list, 'rounds.over_select=[100%, 130%]'; may be repeated.",
)
@click.option(
    "--space",
    "space_file",
    type=_FILE,
    metavar="FILE",
    help="A YAML file with 'minimise' or 'maximise', and under 'vary' keys with ranges.",
)
@click.option(
    "--trials",
    type=click.IntRange(1, 10_000),
    default=30,
    show_default=True,
    help="How many settings to try, those of an earlier tuning in DIR included.",
)
@click.option(
    "--repeat",
    type=click.IntRange(1, 1000),
    default=1,
    show_default=True,
    help="Runs of each trial, by seeds seed, seed + 1, …: the figure is their mean, thresholds hold in all.",
)
@click.option("--seed", type=click.IntRange(min=0), default=1, show_default=True, help="Seed of the search.")
@setting_option
@click.option("--jobs", type=worker_count, metavar="N", help="Runs at a time; by default one a processor.")
@engine_option
@address_option
@click.option(
    "--out",
    type=_PATH,
    metavar="DIR",
    help="Directory of the tuning; by default runs/<scenario>-tune in the current folder.",
)
@click.option("--all", "everything", is_flag=True, help="Print every trial, in its order, not only the best.")
@json_option
@plugin_option
@works_in("coordinator.cli.tune:tune")
def tune() -> None:
    """Search for settings that make one figure best and hold all thresholds.

    The scenario's thresholds say what has to hold, those with 'abort: true' end a trial as soon as it is
    missed. Trials that have ended in DIR are kept, so the same command goes on where an earlier one was
    stopped; more --trials go on from there. best.yaml in DIR is the best scenario. Exits with 3 if no trial
    held every threshold. Needs the extra recfleet[tune].
    """


@cli.command
@click.argument("runs", nargs=-1, required=True, metavar="RUN…", type=_PATH)
@json_option
@junit_option
@plugin_option
@works_in("coordinator.cli.compare:compare")
def compare() -> None:
    """Compare the figures of runs, with intervals.

    Differences are to the first. RUN is a run directory, or a directory of runs: repeats, or a sweep. Runs
    that differ in their seeds alone are repeats of one method and give intervals; with the same seeds on both
    sides, differences are paired. Exits with 0 whatever the differences are.
    """


@cli.command
@click.argument("run", metavar="RUN", type=_PATH)
@click.option(
    "--to",
    "sinks",
    multiple=True,
    required=True,
    metavar="NAME[=TARGET]",
    help="Where to, such as 'mlflow=http://localhost:5000' or 'tensorboard=logs'; may be repeated.",
)
@plugin_option
@works_in("coordinator.cli.log:log")
def log() -> None:
    """Give a run that lies in a directory to a sink, such as a tracker of experiments.

    RUN is a run directory. What 'run --sink' would have given is given now: settings, the rows of all tables,
    verdicts, the report. MLflow and TensorBoard are built in, with the extras recfleet[mlflow] and
    recfleet[tensorboard].
    """


@cli.command
@click.argument("scenario", required=False, type=scenario_file)
@setting_option
@click.option(
    "--scenarios", type=click.IntRange(min=1), help=f"How many to run; {SWARM_SCENARIOS} by default."
)
@click.option("--seed", type=click.IntRange(min=0), default=1, show_default=True, help="Seed of the swarm.")
@click.option(
    "--only",
    type=click.IntRange(min=0),
    multiple=True,
    metavar="I",
    help="Run scenario I of the swarm alone; may be repeated.",
)
@click.option("--replay", type=scenario_file, metavar="SCENARIO", help="Run and check one scenario.")
@click.option("--minutes", type=click.FloatRange(min=0, min_open=True), help="Begin no scenario after that.")
@click.option("--seconds", type=click.FloatRange(min=0, min_open=True), help="The same, in seconds.")
@click.option("--workers", type=worker_count, help="Scenarios at a time; by default one a processor.")
@engine_option
@address_option
@click.option("--keep-going", is_flag=True, help="Go on after a scenario has failed, or a promise broke.")
@click.option("--minimise/--no-minimise", default=True, help="Make failing scenarios small; done by default.")
@click.option(
    "--out",
    type=_FOLDER,
    default=Path("swarm-failures"),
    show_default=True,
    metavar="DIR",
    help="Folder for the scenario files of failures; made when there is one.",
)
@junit_option
@plugin_option
@works_in("coordinator.cli.swarm:swarm")
def swarm() -> None:
    """Look for what goes wrong, in random scenarios or around one of yours.

    With SCENARIO, a file or the name of a shipped one, its promises are put to the test: random faults,
    fleets and seeds are laid over it until one of its thresholds is missed. What broke it is made less as
    long as it still does, told in words, and kept as a scenario file that 'recfleet run' reproduces it with.
    --set, --scenarios, --seed, --minutes, --seconds, --keep-going and --out apply.

    Without SCENARIO, recfleet itself is: random scenarios with random faults are run, and what must hold of
    every run is checked. Scenario I of a seed is always the same. A failure is shown with the command that
    replays it, and kept as a scenario file, as small as it gets. Without --scenarios, a limit of time is the
    only one.
    """


def _limit(name: str, text: str) -> Callable[[VerbWork], VerbWork]:
    """Return the option for a limit on connections, with its default."""
    default = getattr(ArrivalLimits(), name)
    kind = click.IntRange(min=1) if isinstance(default, int) else click.FloatRange(min=0, min_open=True)
    option = "--" + name.replace("_", "-")
    return click.option(option, name, type=kind, default=default, show_default=True, help=text)


@cli.command
@click.argument("scenario", type=scenario_file)
@setting_option
@seed_option
@out_option
@overwrite_option
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on.")
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    default=8080,
    show_default=True,
    help="Port to listen on; 0 lets the system choose.",
)
@click.option(
    "--wait-for",
    type=click.IntRange(min=1),
    metavar="N",
    help="Devices that have joined before the first round; by default as many as a round invites.",
)
@click.option("--quiet", is_flag=True, help="Print only the URL, the run directory, and missed thresholds.")
@click.option("--details", is_flag=True, help="Print the tables by device class, network and stage, too.")
@click.option(
    "--with-data",
    is_flag=True,
    help="Read or make the data of all devices here, and measure the model with it; else devices measure.",
)
@click.option(
    "--resume",
    is_flag=True,
    help="Go on with the run of this scenario that was stopped or killed; begin it if there is none.",
)
@click.option(
    "--enrolment",
    type=click.Path(path_type=Path, file_okay=False),
    metavar="DIR",
    help="Devices need a token that 'recfleet enroll issue DIR' has issued.",
)
@click.option(
    "--tls", is_flag=True, help="Speak TLS with a certificate that is generated, and kept in --enrolment."
)
@click.option("--certificate", type=_FILE, metavar="FILE", help="Speak TLS with this certificate (PEM).")
@click.option("--key", type=_FILE, metavar="FILE", help="The key of --certificate (PEM).")
@click.option("--insecure", is_flag=True, help="Speak plain HTTP also with other hosts.")
@click.option(
    "--view-token-file",
    type=_FILE,
    metavar="FILE",
    help="Token for the dashboard and the metrics; other hosts need one in any case, and it is made up "
    "and printed unless it is given.",
)
@_limit("connections", "Most connections at one time.")
@_limit("connections_per_address", "Most connections at one time from one address.")
@_limit("arrivals_per_s", "New connections a second, in the long run.")
@_limit("arrivals_per_s_per_address", "The same from one address.")
@json_option
@junit_option
@sink_option
@plugin_option
@works_in("coordinator.cli.serve:serve")
def serve() -> None:
    """Run a scenario with the devices that join over sockets.

    It reads no ratings: devices bring theirs and measure the model (evaluation.on: devices).

    Devices join with 'recfleet device URL', from other hosts with a token (--enrolment) over TLS. The run
    begins once enough are there, and leaves the same files as a simulated one; every time in them is
    measured. The first Ctrl-C (or SIGTERM) ends it after the round under way, the second at once; --resume
    goes on with it, even if it was killed.
    """


@cli.command
@click.argument("url", metavar="URL")
@click.option(
    "--id",
    "first",
    type=click.IntRange(min=0),
    default=0,
    show_default=True,
    help="Which device of the fleet this is; the first of several.",
)
@click.option(
    "--count", type=click.IntRange(min=1), default=1, show_default=True, help="Devices in this process."
)
@click.option(
    "--data",
    type=_FILE_OR_FOLDER,
    metavar="PATH",
    help="Where the device's ratings are, in place of the path that the scenario names.",
)
@click.option(
    "--no-shape",
    "shaped",
    flag_value=False,
    default=True,
    help="Be as fast as this machine and its network, not as the device's profile.",
)
@click.option(
    "--token",
    default="",
    envvar="RECFLEET_TOKEN",
    metavar="TOKEN",
    help="What lets the device in, where that is asked for. Others on this host can see it among the "
    "processes: a file, or the variable RECFLEET_TOKEN, is better.",
)
@click.option(
    "--token-file",
    type=_FILE,
    metavar="FILE",
    help="File with the token, or with lines 'DEVICE TOKEN', as 'recfleet enroll issue' prints them.",
)
@click.option(
    "--pin",
    metavar="SHA256",
    help="Trust the certificate with this fingerprint, and no other one: 'sha256:…'.",
)
@click.option("--insecure", is_flag=True, help="Show the token to another host over plain HTTP, too.")
@click.option(
    "--workers",
    type=worker_count,
    default=1,
    show_default=True,
    help="Threads that compute for the devices of this process.",
)
@click.option(
    "--patience",
    "patience_s",
    default="60 s",
    show_default=True,
    callback=duration_s,
    metavar="TIME",
    help="How long to try to reach a coordinator that is not there, or not any more: '60 s', '10 min'.",
)
@click.option(
    "--memory",
    type=_FOLDER,
    metavar="DIR",
    help="Where the devices keep which rounds they have answered; else recfleet/devices below "
    "$XDG_STATE_HOME or ~/.local/state.",
)
@click.option(
    "--max-epsilon",
    type=click.FloatRange(min=0, min_open=True),
    metavar="EPSILON",
    help="Most ε (replace-one) that a device spends in the run by the noise that it adds itself; else what "
    "all rounds of the scenario spend.",
)
@plugin_option
@works_in("coordinator.cli.device:device")
def device() -> None:
    """Join a coordinator as one device, or as many.

    They take part in the rounds of the coordinator at URL until it says goodbye. It sends the scenario; each
    device makes or reads its own ratings as that says, and they never leave it.
    """


@cli.group
def enroll() -> None:
    """Issue, list and revoke the tokens that let devices in.

    DIR is a directory that 'recfleet serve --enrolment DIR' reads. A service that runs sees at once what is
    issued, and within seconds what is revoked.
    """


_directory_argument = click.argument("directory", metavar="DIR", type=_FOLDER)


@enroll.command("issue")
@_directory_argument
@click.option(
    "--devices",
    required=True,
    callback=device_range,
    metavar="ID|FIRST-LAST",
    help="The devices that may come in: 17, or 0-499.",
)
@click.option("--each", is_flag=True, help="A token for each device, in place of one that they share.")
@click.option(
    "--identities",
    is_flag=True,
    help="With --each: an identity for each device, which secure sums in mode 'active' need.",
)
@click.option(
    "--expires",
    "lifetime_s",
    default="30 d",
    show_default=True,
    callback=lifetime_s,
    metavar="TIME",
    help="How long the token is valid: '12 h', '30 d'.",
)
@works_in("coordinator.cli.enroll:issue_tokens")
def issue_tokens() -> None:
    """Issue a token, and print it: once, for DIR only holds its hash.

    What is printed is a file for 'recfleet device --token-file'.

    With --identities each line holds a private key, too, and the hash of the roster of all devices. DIR holds
    the roster. Do it on another computer than the coordinator's, give each device its own line, and the
    coordinator DIR: so it cannot pass for a device.
    """


@enroll.command("list")
@_directory_argument
@works_in("coordinator.cli.enroll:list_tokens")
def list_tokens() -> None:
    """List issued tokens: device, expiry, validity. The tokens themselves are not stored."""


@enroll.command("revoke")
@_directory_argument
@click.argument("keys", metavar="ID…", nargs=-1, required=True)
@works_in("coordinator.cli.enroll:revoke_tokens")
def revoke_tokens() -> None:
    """Revoke tokens by the ids that 'list' shows. Sessions opened with them end within seconds."""


@cli.command
@click.argument("first", metavar="A", type=_PATH)
@click.argument("second", metavar="B", type=_PATH)
@works_in("coordinator.cli.diff:diff")
def diff() -> None:
    """Say whether two runs are identical, or where they part.

    A and B are run directories. What was measured on the host, such as wall time, is not compared. Exits
    with 0 if the runs are identical, with 3 if they differ.
    """


@cli.command
@click.argument("runs", metavar="RUN…", type=_PATH, nargs=-1, required=True)
@click.option(
    "--format",
    "form",
    type=click.Choice(["html", "md", "svg"]),
    default="html",
    show_default=True,
    help="A page for a browser; its tables as Markdown; or the charts of each question as a picture.",
)
@click.option(
    "-o",
    "--output",
    type=_PATH,
    metavar="FILE",
    help=f"The file to write; by default {REPORT}, .md or .svg in the directory named, or, of several, in "
    "the current folder.",
)
@works_in("coordinator.cli.report:report")
def report() -> None:
    """Write a report of one or several runs as one file.

    Every RUN is a run directory: finished, interrupted, killed or still going on; or a directory that holds
    some, which stands for all of them. Several runs are drawn on top of each other. The file needs no network
    and no other file.
    """


@cli.command
@click.argument("run", metavar="RUN", type=_PATH)
@click.option(
    "--split",
    type=click.Choice(["test", "validation"]),
    help="Which of the kept-back ratings count; by default those that the run evaluates on.",
)
@click.option(
    "--top",
    type=click.IntRange(min=1),
    default=100,
    show_default=True,
    help="Candidates of each user, beside the kept-back items, where the whole catalogue is ranked.",
)
@setting_option
@click.option(
    "-o", "--output", type=_PATH, required=True, metavar="FILE", help="The .parquet or .csv file to write."
)
@plugin_option
@works_in("coordinator.cli.predict:predict")
def predict() -> None:
    """Write what the model of RUN predicts as a table, for the metrics of other libraries.

    A row is a user, an item, the score, its rank from 1, and the rating that was kept back, if one was. Users
    and candidates are those of the run's evaluation: the items that the user has not trained on and, on
    the test, that were not kept back for validation; or, where the scenario ranks among sampled ones, those.
    The ratings are read where the scenario says; say where they are now with --set data.path=…
    """


@cli.command
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
@works_in("coordinator.cli.export:export")
def export() -> None:
    """Write the model that the run directory RUN holds as an ONNX file.

    A device's model is made from its ratings, and one with masks needs the features of the items: both are
    read where the scenario says; say where they are now with --set data.path=…

    Needs the extra: pip install 'recfleet[export]'.
    """


@cli.command
@click.argument("run", metavar="RUN", type=_PATH)
@click.option(
    "-o",
    "--output",
    type=_PATH,
    required=True,
    metavar="FILE",
    help="The table to write: Parquet, or CSV (.csv).",
)
@click.option(
    "--work", is_flag=True, help="With the operations of each task; reads the data of the scenario again."
)
@setting_option
@plugin_option
@works_in("coordinator.cli.telemetry:telemetry")
def telemetry() -> None:
    """Write a run as the telemetry that a real fleet would have left.

    A row is a transfer, a compute task or a check-in of a device: a table for 'recfleet profiles fit'. With
    --set data.path=… the data is read from elsewhere.
    """


@cli.command
@click.argument("model", metavar="MODEL", type=_PATH)
@click.option(
    "--ratings", type=_PATH, required=True, metavar="FILE", help="CSV of item,rating: what the user rated."
)
@click.option("--top", type=click.IntRange(min=1), default=10, show_default=True, help="How many items.")
@click.option("--titles", type=_PATH, metavar="FILE", help="CSV of item,title, in place of the model's own.")
@click.option("--skip-unknown", is_flag=True, help="Leave out rated items that the model does not know.")
@works_in("coordinator.cli.recommend:recommend")
def recommend() -> None:
    """Recommend items for a history of ratings.

    MODEL is a file from `recfleet export --kind stateless`. Nothing leaves this machine.
    """


@cli.command
@works_in("coordinator.cli.doctor:doctor")
def doctor() -> None:
    """Check this installation and this machine.

    Versions of Python and of every dependency, what each extra gives and how to install it, whether
    recfleet's packages are its own, processors, what the last bits of figures depend on, whether the virtual
    clock goes right on this Python, memory, disk and clock. Exits with 1 if something is wrong.
    """
