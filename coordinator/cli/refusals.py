"""Errors of the user's making, as messages with exit code 2."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import click

from coordinator.scenario.errors import ScenarioError
from coordinator.scenario.exit_codes import ExitCode
from device_profiles.errors import CatalogueError, ProfileError, TraceError, UnknownProfileError
from edge.core.errors import DeadlockError, LocalProtocolError, ParityError, PluginError, RecfleetError


class Refusal(click.ClickException):
    """A message for the user, printed as it stands; the command exits with code 2."""

    exit_code = int(ExitCode.INVALID_SCENARIO)

    def show(self, file: object = None) -> None:
        """Print the message to standard error."""
        click.echo(self.message, err=True)


@contextmanager
def refusals() -> Iterator[None]:
    """Turn errors of the user's making into a :class:`Refusal`; one of recfleet's or the host's passes."""
    try:
        yield
    except (ScenarioError, CatalogueError, PluginError) as error:
        # Their lines already begin with file:line:column.
        raise Refusal(str(error)) from error
    except (LocalProtocolError, DeadlockError, ParityError):
        raise
    except (RecfleetError, UnknownProfileError, ProfileError, TraceError) as error:
        raise Refusal(f"error: {error}") from error
