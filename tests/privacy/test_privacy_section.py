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
    assert (section.clip_norm, section.noise_multiplier, section.delta) == (0.5, 1.1, 1e-5)
    with pytest.raises(ValidationError, match="frozen"):
        section.clip_norm = 1.0
    assert read(mechanism=mechanism, clip_norm="1", noise_multiplier="0").noise_multiplier == 0


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
    assert problem == f"privacy.mechanism: 'gaussian' is not one of: {', '.join(MECHANISMS)}"


def test_every_setting_is_described() -> None:
    for name, section in MECHANISMS.items():
        assert words_of(shape_of_field(section, "mechanism")) == (name,)
        assert all(info.description for key, info in section.model_fields.items() if key != "mechanism")
