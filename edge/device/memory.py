"""Whether a task fits into a device's memory."""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt

APP_SHARE_OF_RAM: Final = 0.25
"""Share of a device's RAM that one application may use before the system ends it.

An assumption: the operating system, its services and the foreground application take the rest, and mobile
systems end a background process long before memory is exhausted.
"""


def fits(
    memory_bytes: npt.NDArray[np.int64],
    ram_bytes: npt.NDArray[np.int64],
    *,
    app_share: float = APP_SHARE_OF_RAM,
) -> npt.NDArray[np.bool_]:
    """Return bool[n], whether each device has the memory for its task; where not, it fails as out of memory.

    Parameters
    ----------
    memory_bytes : int64[n], peak memory of the task: model, local data, workspace and update.
    ram_bytes : int64[n], main memory of the device.
    app_share : share of it that the task may use, in (0, 1].

    Raises
    ------
    ValueError : ``app_share`` outside (0, 1].
    """
    if not 0.0 < app_share <= 1.0:
        raise ValueError(
            f"app_share must be above 0 and at most 1, not {app_share!r}; write 0.25 for a quarter"
        )
    return np.asarray(memory_bytes <= ram_bytes * app_share)
