from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from coordinator.scenario.model import Section, words_of
from coordinator.scenario.model import field_shape as shape_of_field
from coordinator.scenario.privacy_section import (
    CentralGaussian,
    DistributedDiscreteGaussian,
    LocalGaussian,
    PersonalGaussian,
    Privacy,
)
from coordinator.scenario.translate import problems_of

MECHANISMS = {
    "central-gaussian": CentralGaussian,
    "local-gaussian": LocalGaussian,
    "distributed-discrete-gaussian": DistributedDiscreteGaussian,
}


class Root(Section):
    """A scenario of nothing but this section."""

    privacy: Privacy


def read(**settings: Any) -> Privacy:
    return Root.model_validate({"privacy": settings}).privacy


def problems(**settings: Any) -> list[str]:
    with pytest.raises(ValidationError) as caught:
        read(**settings)
    return [
        f"{'.'.join(map(str, problem.path))}: {problem.message}"
        for problem in problems_of(caught.value, Root)
    ]


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_a_mechanism_is_read_with_its_defaults(mechanism: str) -> None:
    section = read(mechanism=mechanism, clip_norm="0.5", noise_multiplier="1.1")
    assert type(section) is MECHANISMS[mechanism]
    assert not isinstance(section, PersonalGaussian)
    assert (section.clip_norm, section.noise_multiplier, section.delta) == (0.5, 1.1, 1e-5)
    with pytest.raises(ValidationError, match="frozen"):
        section.clip_norm = 1.0
    silent = read(mechanism=mechanism, clip_norm="1", noise_multiplier="0")
    assert not isinstance(silent, PersonalGaussian)
    assert silent.multiplier == 0


def test_amplification_is_for_the_central_mechanism() -> None:
    settings = {"clip_norm": "1", "noise_multiplier": "1"}
    plain = read(mechanism="central-gaussian", **settings)
    amplified = read(mechanism="central-gaussian", amplification="sampling", **settings)
    assert isinstance(plain, CentralGaussian)
    assert isinstance(amplified, CentralGaussian)
    assert (plain.amplification, amplified.amplification) == ("none", "sampling")
    for mechanism in ("local-gaussian", "distributed-discrete-gaussian"):
        assert problems(mechanism=mechanism, amplification="sampling", **settings) == [
            "privacy.amplification: unknown key"
        ]


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("clip_norm", "0", "'0' is not positive; write a number above 0"),
        ("clip_norm", "-1", "'-1' "),
        ("clip_norm", "wide", "'wide' "),
        ("clip_norm", "nan", "'nan' "),
        ("clip_norm", "inf", "'inf' "),
        ("noise_multiplier", "-0.1", "'-0.1' "),
        ("noise_multiplier", "nan", "'nan' "),
        ("noise_multiplier", "inf", "'inf' "),
        ("delta", "0", "'0' is not positive"),
        ("delta", "-1e-5", "'-1e-5' "),
        ("delta", "1", "1 promises nothing; write a number below 1, such as '1e-5'"),
        ("delta", "2.5", "2.5 promises nothing"),
        ("amplification", "poisson", "'poisson' is none of: none, sampling"),
        ("epsilon", "1", "unknown key"),
    ],
)
def test_settings_that_are_refused(key: str, value: str, message: str) -> None:
    good = {"mechanism": "central-gaussian", "clip_norm": "1", "noise_multiplier": "1"}
    (problem,) = problems(**(good | {key: value}))
    assert problem.startswith(f"privacy.{key}: {message}")


@pytest.mark.parametrize("key", ["mechanism", "clip_norm", "noise_multiplier"])
def test_settings_without_which_there_is_no_privacy(key: str) -> None:
    good = {"mechanism": "central-gaussian", "clip_norm": "1", "noise_multiplier": "1"}
    (problem,) = problems(**{name: value for name, value in good.items() if name != key})
    assert problem.startswith(f"privacy.{key}: missing; write ")


def test_an_unknown_mechanism_is_refused_with_the_known_ones() -> None:
    (problem,) = problems(mechanism="gaussian", clip_norm="1", noise_multiplier="1")
    assert (
        problem == f"privacy.mechanism: 'gaussian' is not one of: {', '.join(MECHANISMS)}, personal-gaussian"
    )


NAIVE = {"mechanism": "central-gaussian", "clip_norm": "2", "calibration": "naive", "claimed_epsilon": "4"}


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_a_naive_calibration_is_one_over_the_claim(mechanism: str) -> None:
    section = read(**(NAIVE | {"mechanism": mechanism}))
    assert not isinstance(section, PersonalGaussian)
    assert (section.multiplier, section.noise_multiplier) == (0.25, None)
    plain = read(mechanism=mechanism, clip_norm="2", noise_multiplier="1.5")
    assert not isinstance(plain, PersonalGaussian)
    assert (plain.multiplier, plain.claimed_epsilon) == (1.5, None)


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"noise_multiplier": "1"}, "noise_multiplier: the naive calibration says how much noise there is"),
        ({"claimed_epsilon": None}, "claimed_epsilon: missing; write what is claimed, such as '1'"),
        ({"claimed_epsilon": "0"}, "claimed_epsilon: '0' is not positive"),
        ({"calibration": "analytic"}, "calibration: 'analytic' is none of: multiplier, naive"),
        (
            {"calibration": None, "noise_multiplier": "1"},
            "claimed_epsilon: is claimed by a naive calibration",
        ),
    ],
)
def test_claims_that_are_refused(changes: dict[str, str | None], problem: str) -> None:
    settings = {key: value for key, value in (NAIVE | changes).items() if value is not None}
    (found,) = problems(**settings)
    assert found.startswith(f"privacy.{problem}")


CASUAL = {"name": "casual", "up_to": "50", "noise_multiplier": "2"}
HEAVY = {"name": "heavy", "noise_multiplier": "1"}


def test_tiers_weigh_one_over_the_variance_of_their_noise() -> None:
    section = read(mechanism="personal-gaussian", clip_norm="1", tiers=[CASUAL, HEAVY])
    assert isinstance(section, PersonalGaussian)
    assert (section.weights, section.shrinkage) == ((0.25, 1.0), 0.0)
    silent = [CASUAL | {"noise_multiplier": "0"}, HEAVY | {"noise_multiplier": "0"}]
    section = read(mechanism="personal-gaussian", clip_norm="1", tiers=silent)
    assert isinstance(section, PersonalGaussian)
    assert section.weights == (1.0, 1.0)


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"tiers": []}, "tiers: there are none"),
        ({"tiers": [CASUAL]}, "tiers.0.up_to: the last tier has no bound"),
        ({"tiers": [HEAVY, HEAVY | {"name": "b"}]}, "tiers.0.up_to: only the last tier has no bound"),
        ({"tiers": [CASUAL, HEAVY | {"name": "casual"}]}, "tiers.1.name: 'casual' is there already"),
        ({"tiers": [CASUAL, CASUAL | {"name": "b", "up_to": "50"}, HEAVY]}, "tiers.1.up_to: 50 is not above"),
        (
            {"tiers": [CASUAL, HEAVY | {"noise_multiplier": "0"}]},
            "tiers.1.noise_multiplier: an update without",
        ),
        ({"tiers": [CASUAL | {"up_to": "0"}, HEAVY]}, "tiers.0.up_to: '0' "),
        ({"shrinkage": "100%"}, "shrinkage: nothing would be left"),
        ({"shrinkage": "-1"}, "shrinkage: '-1' "),
        ({"noise_multiplier": "1"}, "noise_multiplier: unknown key"),
        ({"delta": "1"}, "delta: 1 promises nothing"),
    ],
)
def test_tiers_that_are_refused(changes: dict[str, Any], problem: str) -> None:
    good: dict[str, Any] = {"mechanism": "personal-gaussian", "clip_norm": "1", "tiers": [CASUAL, HEAVY]}
    (found,) = problems(**(good | changes))
    assert found.startswith(f"privacy.{problem}")


def test_every_setting_is_described() -> None:
    for name, section in (MECHANISMS | {"personal-gaussian": PersonalGaussian}).items():
        assert words_of(shape_of_field(section, "mechanism")) == (name,)
        assert all(info.description for key, info in section.model_fields.items() if key != "mechanism")
