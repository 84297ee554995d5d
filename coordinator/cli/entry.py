"""Entry of the command: what must precede every import, the verbs, and errors turned into exit codes.

Only click is imported here, so that ``recfleet --help`` answers at once; a verb's module, and numpy and
pydantic with it, is imported when the verb is used.
"""

from __future__ import annotations

import difflib
import importlib
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import click
from click.shell_completion import CompletionItem

from coordinator.cli.failures import report_failure
from coordinator.exit_codes import ExitCode

BLAS_THREAD_VARIABLES: Final = (
    "OPENBLAS_NUM_THREADS",
    "OMP_NUM_THREADS",
    "MKL_NUM_THREADS",
    "BLIS_NUM_THREADS",
    "VECLIB_MAXIMUM_THREADS",
)


class Verb(NamedTuple):
    """Where a verb's command is, as ``module:attribute``, and what the list of verbs says about it."""

    target: str
    summary: str


VERBS: Final[Mapping[str, Verb]] = {
    "run": Verb("coordinator.cli.run:run", "Run a scenario and say whether its thresholds held."),
    "scenarios": Verb(
        "coordinator.cli.shipped:scenarios", "List the shipped scenarios, or copy one to change it."
    ),
    "data": Verb("coordinator.cli.data:data", "Show what a file of ratings holds, and the YAML to read it."),
    "init": Verb("coordinator.cli.init:init", "Write a scenario to begin with, for your ratings or without."),
    "validate": Verb("coordinator.cli.scenarios:validate", "Check scenario files and show every error."),
    "show": Verb("coordinator.cli.scenarios:show", "Print a scenario with all of its defaults, as YAML."),
    "upgrade": Verb("coordinator.cli.upgrade:upgrade", "Rewrite scenario files in the newest format."),
    "schema": Verb(
        "coordinator.cli.scenarios:schema", "Print the JSON Schema of scenario files, for editors."
    ),
    "plugins": Verb(
        "coordinator.cli.plugins:plugins", "List methods, faults and selectors, and their origin."
    ),
    "check-plugin": Verb(
        "coordinator.cli.plugins:check_plugin", "Check that a method, fault or selector keeps the rules."
    ),
    "profiles": Verb(
        "coordinator.cli.profiles:profiles", "Devices, networks and fleets, with their sources."
    ),
    "sweep": Verb(
        "coordinator.cli.sweep:sweep", "Run every cell of a scenario's sweep, and print one table."
    ),
    "compare": Verb("coordinator.cli.compare:compare", "Compare the figures of runs, with intervals."),
    "swarm": Verb(
        "coordinator.cli.swarm:swarm",
        "Make random scenarios with random faults, run them, and check that what must hold does.",
    ),
    "serve": Verb("coordinator.cli.serve:serve", "Run a scenario with the devices that join over sockets."),
    "device": Verb("coordinator.cli.device:device", "Join a coordinator as one device, or as many."),
    "enroll": Verb("coordinator.cli.enroll:enroll", "Issue, list and revoke the tokens that let devices in."),
    "diff": Verb("coordinator.cli.runs:diff", "Say whether two runs are identical, or where they part."),
    "report": Verb(
        "coordinator.cli.report:report", "Write a report of one or several runs as one HTML file."
    ),
    "export": Verb(
        "coordinator.cli.export:export", "Write the model that the run directory RUN holds as an ONNX file."
    ),
    "recommend": Verb("coordinator.cli.recommend:recommend", "Recommend items for a history of ratings."),
    "doctor": Verb("coordinator.cli.doctor:doctor", "Check this installation and this machine."),
}


@dataclass
class Settings:
    """Options that stand before the verb."""

    debug: bool = False


class LazyGroup(click.Group):
    """A group whose commands are imported when they are used; ``VERBS`` lists them."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the verbs in the order of their table."""
        return list(VERBS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import a verb's command; None for a verb that does not exist."""
        verb = VERBS.get(cmd_name)
        if verb is None:
            return None
        module, attribute = verb.target.split(":")
        command: click.Command = getattr(importlib.import_module(module), attribute)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the list of verbs from the table, without importing them."""
        with formatter.section("Verbs"):
            formatter.write_dl([(name, verb.summary) for name, verb in VERBS.items()])

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Offer verbs from the table, without importing them, and options."""
        verbs = [
            CompletionItem(name, help=verb.summary)
            for name, verb in VERBS.items()
            if name.startswith(incomplete)
        ]
        return [*verbs, *click.Command.shell_complete(self, ctx, incomplete)]

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the verb that was written, and name the nearest one if there is none."""
        if args and args[0] not in VERBS and not args[0].startswith("-") and not ctx.resilient_parsing:
            close = difflib.get_close_matches(args[0], VERBS, n=1)
            hint = f"did you mean {close[0]!r}?" if close else f"there are: {', '.join(VERBS)}"
            raise click.UsageError(f"unknown verb {args[0]!r}; {hint}", ctx)
        return super().resolve_command(ctx, args)


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
    cls=LazyGroup,
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


def limit_blas_threads() -> None:
    """Hold BLAS to one thread; must come before numpy is imported, which reads these variables only then.

    The last bits of a matrix product depend on how many threads share it, and a run's must not. The matrices
    of one device are far too small to gain from more, too.
    """
    for name in BLAS_THREAD_VARIABLES:
        os.environ[name] = "1"


def execute(arguments: Sequence[str]) -> int:
    """Run the command and return its exit code; every error has been reported when it returns.

    Parameters
    ----------
    arguments : what follows ``recfleet`` on the command line.
    """
    settings = Settings()
    try:
        code: Any = cli.main(list(arguments), prog_name="recfleet", standalone_mode=False, obj=settings)
    except click.ClickException as error:
        error.show()
        return error.exit_code
    except click.Abort:
        # Click's name for Ctrl-C.
        click.echo("interrupted", err=True)
        return int(ExitCode.INTERRUPTED)
    except Exception as error:  # the last place at which a bug can become a message and an exit code
        report_failure(error, arguments, show_traceback=settings.debug)
        return int(ExitCode.INTERNAL_ERROR)
    return int(code) if isinstance(code, int) else int(ExitCode.HELD)
