"""The kinds of mask by name: their settings, and how to make them.

A scenario's mask is one of the settings models, distinguished by ``kind``. To add a kind is to add a line
here.
"""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BaseModel

from device_profiles.fields import ByKey
from edge.learning.masks.base import MaskModel
from edge.learning.masks.high_order import HighOrder, HighOrderSettings
from edge.learning.masks.one_order import OneOrder, OneOrderSettings
from edge.learning.masks.two_order import TwoOrder, TwoOrderSettings
from edge.learning.masks.zero_order import ZeroOrder, ZeroOrderSettings

MaskSettings = Annotated[
    ZeroOrderSettings | OneOrderSettings | TwoOrderSettings | HighOrderSettings,
    ByKey("kind"),
]
"""The settings of any kind of mask."""

MASKS: dict[type[BaseModel], type[Any]] = {
    ZeroOrderSettings: ZeroOrder,
    OneOrderSettings: OneOrder,
    TwoOrderSettings: TwoOrder,
    HighOrderSettings: HighOrder,
}
"""Every mask model by its settings."""


def create(settings: BaseModel) -> MaskModel:
    """Make the mask model that ``settings`` belong to.

    Raises
    ------
    ValueError : ``settings`` belong to no kind of mask.
    """
    model = MASKS.get(type(settings))
    if model is None:
        known = ", ".join(str(kind.model_fields["kind"].default) for kind in MASKS)
        raise ValueError(f"{type(settings).__name__} are settings of no kind of mask; there are {known}")
    made: MaskModel = model(settings)
    return made
