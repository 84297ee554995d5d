"""Random settings of any section, for those that bring none of their own."""

from __future__ import annotations

from typing import Any, Final, get_args

from pydantic import BaseModel, ValidationError

from coordinator.scenario.model import Shape, field_shape, words_of
from device_profiles.fields import Form
from edge.core.draws import Draws

_TRIES: Final = 20


def random_settings(section: type[BaseModel], draws: Draws) -> dict[str, Any]:
    """Return random settings of a section, as a scenario writes them; half of the optional ones are left out.

    Fields that are lists, mappings or sections keep their defaults.

    Raises
    ------
    ValueError : a required field has a type that has no random values, or no try was valid.
    """
    for _ in range(_TRIES):
        made = {}
        for name, info in section.model_fields.items():
            if info.is_required() or draws.chance(0.5):
                value = _random(field_shape(section, name), draws)
                if value is not None:
                    made[name] = value
                elif info.is_required():
                    raise ValueError(f"{section.__name__}.{name} has a type without random values")
        try:
            section.model_validate(made)
        except ValidationError as error:
            refused = error
        else:
            return made
    raise ValueError(f"{section.__name__}: no random settings were valid: {refused}")


def _random(shape: Shape, draws: Draws) -> str | None:
    """Return a random value as it is written; None for a type that has none."""
    words = words_of(shape)
    if words:
        return draws.one(words)
    form = shape.extra(Form)
    kinds = {shape.type, *get_args(shape.type)}
    if bool in kinds:
        return draws.one(("true", "false"))
    if form is None or not kinds & {int, float}:
        return None
    written: str = form.write(draws.between(0.05, 1.0) if float in kinds else draws.whole(1, 4))
    return written
