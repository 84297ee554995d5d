"""The ``learning`` section: whatever settings the registered methods declare."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Union

from pydantic import BaseModel, Field

from edge.learning.registry import METHODS

if TYPE_CHECKING:
    Learning = BaseModel
else:
    # The registry decides what there is, so the union cannot be spelled out here.
    Learning = Annotated[
        Union[tuple(entry.settings for entry in METHODS.values())],  # noqa: UP007
        Field(discriminator="algorithm"),
    ]


def method_name(settings: Any) -> str:
    """Return the name under which the method of these settings is registered."""
    return str(settings.algorithm)
