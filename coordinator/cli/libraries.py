"""Settings that libraries read while they are imported, set apart from everything that imports them."""

from __future__ import annotations

import os
from typing import Final

BLAS_THREAD_VARIABLES: Final = (
    "OPENBLAS_NUM_THREADS",
    "OMP_NUM_THREADS",
    "MKL_NUM_THREADS",
    "BLIS_NUM_THREADS",
    "VECLIB_MAXIMUM_THREADS",
)


def limit_blas_threads() -> None:
    """Hold BLAS to one thread; must come before numpy is imported, which reads these variables only then.

    The last bits of a matrix product depend on how many threads share it, and a run's must not. The matrices
    of one device are far too small to gain from more, too.
    """
    for name in BLAS_THREAD_VARIABLES:
        os.environ[name] = "1"


def share_heap_with_arrow() -> None:
    """Let pyarrow allocate where numpy does, unless the user has chosen; must come before it is imported.

    Its own allocator gives memory back to the system and clears it anew: tenths of the time of a wave's rows,
    and a second heap.
    """
    os.environ.setdefault("ARROW_DEFAULT_MEMORY_POOL", "system")


def leave_out_pydantic_plugins() -> None:
    """Keep pydantic from searching all installed packages for its plug-ins, unless the user has chosen.

    Must come before the first model is made. Scenarios are validated without them.
    """
    os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "__all__")
