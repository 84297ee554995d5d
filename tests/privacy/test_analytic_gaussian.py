"""The exact ε of Gaussian noise, where it is known, and where numbers are large or small."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edge.core.errors import LocalProtocolError
from edge.privacy.accounting import gaussian_epsilon, naive_multiplier


def delta_of(mu: float, epsilon: float) -> float:
    def normal(x: float) -> float:
        return 0.5 * math.erfc(-x / math.sqrt(2))

    return normal(mu / 2 - epsilon / mu) - math.exp(epsilon) * normal(-mu / 2 - epsilon / mu)


@given(st.floats(0.05, 8), st.floats(1e-6, 0.1))
@settings(deadline=None)
def test_delta_at_epsilon_is_delta(mu: float, delta: float) -> None:
    epsilon = gaussian_epsilon(mu, delta)
    if epsilon > 0:
        assert delta_of(mu, epsilon) == pytest.approx(delta, rel=1e-6)
    else:
        assert delta_of(mu, 0.0) <= delta


@given(st.floats(1e-3, 1e6), st.floats(1.001, 3), st.floats(1e-12, 0.9))
@settings(deadline=None)
def test_epsilon_grows_with_mu_and_falls_with_delta(mu: float, factor: float, delta: float) -> None:
    assert gaussian_epsilon(mu, delta) <= gaussian_epsilon(mu * factor, delta)
    assert gaussian_epsilon(mu, min(delta * factor, 0.99)) <= gaussian_epsilon(mu, delta) * (1 + 1e-12)


def test_the_ends_of_the_range() -> None:
    assert gaussian_epsilon(0.0, 1e-5) == 0.0
    assert gaussian_epsilon(1e-9, 1e-5) == 0.0
    assert gaussian_epsilon(math.inf, 1e-5) == math.inf
    assert gaussian_epsilon(1e6, 0.5) == pytest.approx(5e11, rel=1e-6)
    # Values of dp_accounting.get_epsilon_gaussian.
    assert gaussian_epsilon(1000.0, 1e-5) == pytest.approx(504263.8929206541, rel=1e-9)
    assert gaussian_epsilon(20.0, 1e-12) == pytest.approx(339.8331798369285, rel=1e-9)
    assert gaussian_epsilon(0.001, 1e-12) == pytest.approx(0.005699546468298283, rel=1e-6)


@pytest.mark.parametrize(("claimed", "rounds", "true"), [(1.0, 1, 4.38), (1.0, 50, 54.4), (8.0, 1, 65.3)])
def test_what_the_naive_calibration_is_worth(claimed: float, rounds: int, true: float) -> None:
    mu = math.sqrt(rounds) / naive_multiplier(claimed)
    assert gaussian_epsilon(mu, 1e-5) == pytest.approx(true, abs=0.05)


@pytest.mark.parametrize(("mu", "delta"), [(-1.0, 0.1), (math.nan, 0.1), (1.0, 0.0), (1.0, 1.0)])
def test_what_is_refused(mu: float, delta: float) -> None:
    with pytest.raises(LocalProtocolError):
        gaussian_epsilon(mu, delta)


@pytest.mark.parametrize("claimed", [0.0, -1.0, math.inf, math.nan])
def test_claims_that_are_refused(claimed: float) -> None:
    with pytest.raises(LocalProtocolError, match="a claimed epsilon"):
        naive_multiplier(claimed)
