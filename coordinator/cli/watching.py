"""A dashboard beside a run that this command makes."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import click

from coordinator.service.dashboard.live_state import LiveState
from coordinator.service.dashboard.watching import Watching


@contextmanager
def watched(port: int) -> Iterator[LiveState]:
    """Serve the dashboard on loopback, and give the state that it shows.

    Raises
    ------
    click.UsageError : the port cannot be had.
    """
    live = LiveState()
    with ExitStack() as stack:
        try:
            watching = stack.enter_context(Watching(live, port))
        except OSError as error:
            problem = f"no page can be served at port {port}: {error.strerror}"
            raise click.UsageError(f"{problem}; name another --watch-port, or none") from error
        click.echo(f"dashboard: {watching.url}", err=True)
        yield live


def stay() -> None:
    """Wait until Ctrl-C."""
    try:
        # Inside, for Ctrl-C may come as soon as this is read.
        click.echo("the dashboard stays until Ctrl-C", err=True)
        threading.Event().wait()
    except KeyboardInterrupt:
        return
