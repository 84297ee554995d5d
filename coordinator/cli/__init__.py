"""The command ``recfleet``: one module per group of verbs, loaded only when its verb is used."""

from __future__ import annotations

import atexit
import gc
import sys
from typing import NoReturn

from coordinator.cli.termination import end_at_once_on_signals

__all__ = ["main"]


def main() -> NoReturn:
    """Run the command on ``sys.argv`` and exit with its code; from the first import on a signal ends it."""
    end_at_once_on_signals()
    # Imports make many objects and no garbage. Registered first, so called last: the interpreter looks for
    # garbage once more when it ends, in all of them, and what they hold is given back anyway.
    gc.set_threshold(500_000, 20, 100)
    atexit.register(gc.freeze)
    # Not before: importing click takes longer than it takes to press Ctrl-C.
    from coordinator.cli.entry import execute  # noqa: PLC0415
    from coordinator.cli.libraries import (  # noqa: PLC0415
        leave_out_pydantic_plugins,
        limit_blas_threads,
        share_heap_with_arrow,
    )
    from coordinator.cli.output import open_outputs, reader_gone  # noqa: PLC0415
    from coordinator.scenario.exit_codes import ExitCode  # noqa: PLC0415

    limit_blas_threads()
    share_heap_with_arrow()
    leave_out_pydantic_plugins()
    open_outputs()
    code = execute(sys.argv[1:])
    sys.exit(int(ExitCode.OUTPUT_CLOSED) if reader_gone() else code)
