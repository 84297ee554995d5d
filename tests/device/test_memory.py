from __future__ import annotations

import numpy as np
import pytest

from edge.device.compute_model import fits


def test_a_task_fits_into_its_share_of_the_ram() -> None:
    ram = np.array([1 << 30, 1 << 30, 4 << 30])
    need = np.array([256 << 20, (256 << 20) + 1, 1 << 30])
    assert fits(need, ram).tolist() == [True, False, True]
    assert fits(need, ram, app_share=1.0).tolist() == [True, True, True]


@pytest.mark.parametrize("share", [0.0, -0.1, 1.5, float("nan")])
def test_a_share_that_makes_no_sense_is_refused(share: float) -> None:
    with pytest.raises(ValueError, match=r"write 0\.25 for a quarter"):
        fits(np.array([1]), np.array([2]), app_share=share)
