"""What the settings of methods have in common, in whatever part of a method they are."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict


class MethodSettings(BaseModel):
    """Settings of a method or of a part of it: immutable, and any key that they do not know is an error."""

    model_config = ConfigDict(frozen=True, extra="forbid")
