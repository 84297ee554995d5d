"""The section ``inference``: recommenders of devices, run through onnxruntime beside the rounds."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

from pydantic import Field, model_validator

from coordinator.scenario.errors import FieldProblem
from coordinator.scenario.model import Section, require
from device_profiles.fields import PositiveFloat, PositiveInt
from edge.onnx import graph_writer


class InferenceSection(Section):
    """Devices that rank the catalogue with their own models; needs the extra `export`.

    It stands beside the simulated time, as an evaluation does: it costs no round a second.
    """

    every: PositiveInt = Field(default=10, description="rounds from one inference to the next")
    devices: PositiveInt = Field(
        default=50, description="size of the seeded sample of devices that run theirs"
    )
    top: PositiveInt = Field(default=10, description="length of each list")
    sessions: Literal["shared", "own"] = Field(
        default="shared",
        description="shared: one onnxruntime session, fed each device's weights; own: a file and a session "
        "for each device, opened together. Only what is measured here differs",
    )
    tolerance: PositiveFloat = Field(
        default=1e-5,
        description="a score may be apart from numpy's by this, and this share of the larger of the two; "
        "beyond it the run ends with an error",
    )

    @model_validator(mode="after")
    def _possible(self) -> InferenceSection:
        require(self._problems())
        return self

    def _problems(self) -> Iterator[FieldProblem]:
        if not graph_writer.available():
            message = "writing the graphs needs the package onnx"
            yield FieldProblem(
                (), message, "install it with \"pip install 'recfleet[export]'\", or leave it out"
            )
        if self.tolerance >= 1:
            message = f"{self.tolerance:g} lets any score pass; write a number below 1, such as '1e-5'"
            yield FieldProblem(("tolerance",), message)
