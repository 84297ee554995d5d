"""The section ``inference``: recommenders of devices, run through onnxruntime beside the rounds."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Literal

from pydantic import Field, model_validator

from coordinator.scenario.data_section import SyntheticRatings, SyntheticRegression
from coordinator.scenario.errors import Problem
from coordinator.scenario.learning_section import method_name
from coordinator.scenario.model import Section, require
from device_profiles.fields import PositiveFloat, PositiveInt
from edge.learning.registry import METHODS
from edge.serving import graph_writer

if TYPE_CHECKING:
    from coordinator.scenario.schema import Scenario


class Inference(Section):
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
    def _possible(self) -> Inference:
        require(self._problems())
        return self

    def _problems(self) -> Iterator[Problem]:
        if not graph_writer.available():
            message = "writing the graphs needs the package onnx"
            yield Problem((), message, "install it with \"pip install 'recfleet[export]'\", or leave it out")
        if self.tolerance >= 1:
            message = f"{self.tolerance:g} lets any score pass; write a number below 1, such as '1e-5'"
            yield Problem(("tolerance",), message)


def inference_problems(scenario: Scenario) -> Iterator[Problem]:
    """Yield what keeps devices of a scenario from running models of their own."""
    section, data = scenario.inference, scenario.data
    if section is None:
        for threshold in scenario.thresholds:
            if threshold.metric.startswith("inference."):
                message = "is only known with a section 'inference'"
                yield Problem(("thresholds", threshold.written_key), message, None, of_key=True)
        return
    method = method_name(scenario.learning)
    if METHODS[method].data != "ratings":
        message = f"{method} ranks no items, so that devices have nothing to run; leave it out"
        yield Problem(("inference",), message, None, of_key=True)
        return
    if isinstance(data, SyntheticRegression):
        return  # refused elsewhere
    if data.clients is not None or (data.users_per_client or 1) > 1:
        key = "users_per_client" if data.clients is None else "clients"
        message = "a device of several users has no model of its own; leave this or the section inference out"
        yield Problem(("data", key), message, None, of_key=True)
        return
    count = scenario.round_count
    if count is not None and section.every > count:
        message = f"there are {count} rounds, so no device would ever run its model; write {count} or less"
        yield Problem(("inference", "every"), message)
    if isinstance(data, SyntheticRatings) and section.devices > data.client_count:
        message = f"{section.devices} devices, but the data has {data.client_count} clients"
        yield Problem(("inference", "devices"), message, f"write {data.client_count} or less")
