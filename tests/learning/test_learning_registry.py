from __future__ import annotations

from functools import reduce
from operator import or_
from typing import Annotated, Any

import pytest
from pydantic import BaseModel, Field, TypeAdapter, ValidationError

from edge.learning.base import Problem
from edge.learning.methods.fedrecon.algorithm import FedRecon
from edge.learning.methods.linear_regression import LinearRegression
from edge.learning.registry import METHODS, create

PROBLEM = Problem(n_items=20, n_features=5, rating_mean=3.5)


def learning_section() -> TypeAdapter[Any]:
    union: Any = reduce(or_, [method.Settings for method in METHODS.values()])
    return TypeAdapter(Annotated[union, Field(discriminator="algorithm")])


@pytest.mark.parametrize(("text", "kind"), [("fedrecon", FedRecon), ("linear-regression", LinearRegression)])
def test_a_method_is_made_from_its_name(text: str, kind: type[Any]) -> None:
    settings = learning_section().validate_python({"algorithm": text})
    assert isinstance(create(settings, PROBLEM), kind)
    assert METHODS[text] is kind


def test_scalars_are_text() -> None:
    settings = learning_section().validate_python(
        {
            "algorithm": "fedrecon",
            "factors": "50",
            "item_bias": "false",
            "support_fraction": "50%",
            "reconstruction": {"method": "mini-batches", "batch_size": "5", "learning_rate": "2e-1"},
            "optimizer": {"kind": "sgd", "momentum": "0"},
            "schedule": {"kind": "step", "every": "100"},
        }
    )
    assert (settings.factors, settings.item_bias, settings.support_fraction) == (50, False, 0.5)
    assert settings.reconstruction.learning_rate == 0.2
    assert settings.schedule.factor(200) == 0.25


@pytest.mark.parametrize(
    "settings",
    [
        {"algorithm": "fedrek"},
        {"algorithm": "fedrecon", "factors": "0"},
        {"algorithm": "fedrecon", "factors": "1.5"},
        {"algorithm": "fedrecon", "item_bias": "no"},
        {"algorithm": "fedrecon", "learning_rate": "nan"},
        {"algorithm": "fedrecon", "support_fraction": "0"},
        {"algorithm": "fedrecon", "reconstruction": {"method": "ridge", "steps": "5"}},
        {"algorithm": "fedrecon", "client": {"method": "gradient-steps"}},
        {"algorithm": "fedrecon", "local": {"method": "gradient"}},
        {"algorithm": "linear-regression", "factors": "8"},
        {"algorithm": "linear-regression", "stop_loss": "-1"},
    ],
)
def test_bad_settings_are_refused(settings: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        learning_section().validate_python(settings)


def test_every_setting_of_every_method_is_described() -> None:
    for method in METHODS.values():
        for name, field in method.Settings.model_fields.items():
            assert name == "algorithm" or field.description, name


def test_settings_of_no_method_are_refused() -> None:
    class Other(BaseModel):
        pass

    known = ", ".join(sorted(METHODS))
    with pytest.raises(ValueError, match=f"no registered method; there are {known}"):
        create(Other(), PROBLEM)
