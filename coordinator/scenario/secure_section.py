"""The section ``secure_aggregation``: how updates are summed so that the coordinator sees the sum alone."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Annotated, Final, Literal

from pydantic import Field

from coordinator.scenario.errors import FieldProblem
from coordinator.scenario.model import Section, clip_problems
from device_profiles.fields import (
    ByKey,
    Fraction,
    NonNegativeFloat,
    OnDemand,
    PositiveFloat,
    PositiveFraction,
    PositiveInt,
    PositiveSeconds,
    StrictBool,
)
from edge import homomorphic
from edge.secagg.config import HONEST_AT_LEAST, CountPart, RealPart, SecAggConfig
from edge.secagg.graph import GraphParameters
from edge.secagg.states import CoordinatorState, Mode

if TYPE_CHECKING:
    from edge.privacy.shielding import MaskTest

STAGE_KEYS: Final = {
    CoordinatorState.SHARING: "share_keys",
    CoordinatorState.MASKING: "masked_input",
    CoordinatorState.CHECKING: "consistency",
    CoordinatorState.UNMASKING: "unmask",
}
"""The key of ``stage_deadlines`` for each stage that has a deadline of its own."""


class StageDeadlines(Section):
    """How long the coordinator waits in each stage; ``rounds.deadline`` is for all that comes before."""

    share_keys: PositiveSeconds = Field(default=15.0, description="from the keys to the last sealed shares")
    masked_input: PositiveSeconds = Field(default=15.0, description="from the shares to the last input")
    consistency: PositiveSeconds = Field(
        default=15.0, description="from the list of survivors to the last signature (mode active)"
    )
    unmask: PositiveSeconds = Field(default=15.0, description="from the request to the last shares needed")

    def of(self, stage: CoordinatorState) -> float:
        """Return the deadline of a stage, seconds."""
        return float(getattr(self, STAGE_KEYS[stage]))

    @property
    def total_s(self) -> float:
        """All of them together, seconds."""
        return self.share_keys + self.masked_input + self.consistency + self.unmask


class NoSecureAggregation(Section):
    """Every device reports in the clear."""

    mode: Literal["off"] = Field(default="off", description="off: no secure aggregation")


class Indicator(Section):
    """Shielded by the indicator J of Yang et al. 2021, which bounds no attack."""

    test: Literal["indicator"] = Field(description="indicator: by J, the error of a mask on held-out ratings")
    at_most: NonNegativeFloat = Field(
        description="largest mean squared error of ratings scaled to 0…1 that passes"
    )
    held_out: PositiveFraction = Field(
        default=0.2, description="a device's own ratings that a second mask is not fitted to, one or more"
    )

    def _problems(self) -> Iterator[FieldProblem]:
        if self.held_out >= 1:
            yield FieldProblem(("held_out",), "leaves nothing to fit a mask to; write less, such as '20%'")

    def build(self) -> MaskTest:
        """Return the test."""
        from edge.privacy.shielding import IndicatorTest  # noqa: PLC0415 - most runs do without

        return IndicatorTest(self.at_most, self.held_out)

    def __str__(self) -> str:
        return f"J at most {self.at_most:g}"


class Recovery(Section):
    """Shielded by what the recovery attack gets back of the device's own masked ratings."""

    test: Literal["recovery"] = Field(description="recovery: by the share of ratings that an attack recovers")
    at_most: Fraction = Field(description="largest share of a device's own ratings that passes")
    within_stars: PositiveFloat = Field(
        default=0.5, description="a rating counts as recovered within so many stars"
    )

    def build(self) -> MaskTest:
        """Return the test."""
        from edge.privacy.shielding import RecoveryTest  # noqa: PLC0415 - most runs do without

        return RecoveryTest(self.at_most, self.within_stars)

    def __str__(self) -> str:
        return f"at most {self.at_most:.6g} recovered within {self.within_stars:g} stars"


Shielded = Annotated[Indicator | Recovery, ByKey("test")]


class _SecureSum(Section):
    """What all protocols have in common."""

    clip: PositiveFloat = Field(
        default=1.0, description="elements of an update are clipped to ± this before they are summed"
    )
    examples_max: PositiveInt = Field(
        default=1000,
        description="most examples of a device; with weights by examples also the largest weight",
    )
    loss_max: PositiveFloat = Field(
        default=10.0, description="largest training loss that a sum has room for; what is above is cut off"
    )
    min_contributors: PositiveInt = Field(
        default=2, description="no sum over fewer devices is revealed; `rounds.quorum` may ask for more"
    )
    stage_deadlines: Annotated[StageDeadlines, OnDemand()] = Field(
        default=StageDeadlines.model_construct(), description="how long the coordinator waits in each stage"
    )

    def _problems(self) -> Iterator[FieldProblem]:
        yield from clip_problems("clip", self.clip)
        yield from clip_problems("loss_max", self.loss_max)
        if self.min_contributors < HONEST_AT_LEAST:
            message = f"a sum over {self.min_contributors} is that device's update"
            yield FieldProblem(("min_contributors",), f"{message}; write {HONEST_AT_LEAST} or more")

    def parts(
        self, arrays: Iterable[tuple[str, int]], clip: float, weight_max: int
    ) -> tuple[RealPart | CountPart, ...]:
        """Return the parts of a sum: the arrays of an update by name and length, examples, and loss."""
        return (
            *(RealPart(name, length, clip) for name, length in arrays),
            CountPart("examples", 1, self.examples_max),
            RealPart("loss", 1, self.loss_max * (self.examples_max / weight_max)),
        )


class Masking(_SecureSum):
    """Double masking: all neighbours of all, sparse, or sparse and against a coordinator that may lie.

    Bonawitz et al. 2017, on the neighbour graph of Bell et al. 2020. ``secagg`` has the complete graph,
    ``secagg-plus`` a sparse one beyond 50 devices, ``active`` adds signatures to that.
    """

    mode: Literal["secagg", "secagg-plus", "active"] = Field(
        description="secagg: everybody is everybody's neighbour; secagg-plus: a sparse graph for more than "
        "50 devices; active: the same for a coordinator that may lie"
    )
    crypto: Literal["real", "modelled"] = Field(
        default="real",
        description="real: done with real keys; modelled: bytes and simulated times alone, for large cohorts",
    )
    bits: PositiveInt = Field(default=32, description="of the ring that sums live in, 32 or 64")
    corrupt: Fraction = Field(default=0.1, description="devices that may collude with the coordinator, γ")
    dropout: Fraction = Field(default=0.1, description="devices that may drop out, δ")
    neighbours: PositiveInt | None = Field(
        default=None, description="degree k of the graph, with `threshold`; chosen for γ and δ by default"
    )
    threshold: PositiveInt | None = Field(
        default=None, description="shares t that rebuild a secret, with `neighbours`; chosen by default"
    )
    unsafe: StrictBool = Field(
        default=False,
        description="go on with `neighbours` and `threshold` that the `corrupt` devices break; the run is "
        "marked for it",
    )
    shielded: Shielded | None = Field(
        default=None,
        description="devices whose fedmmf mask passes this test report in the clear; none by default",
    )

    def _problems(self) -> Iterator[FieldProblem]:
        yield from super()._problems()
        if self.bits not in (32, 64):
            yield FieldProblem(("bits",), f"{self.bits} is no size of the ring; write 32 or 64")
        if (self.neighbours is None) != (self.threshold is None):
            written = "neighbours" if self.threshold is None else "threshold"
            other = "threshold" if self.threshold is None else "neighbours"
            yield FieldProblem(
                (written,), f"needs '{other}' beside it; write both or none", None, of_key=True
            )
        elif self.unsafe and self.neighbours is None:
            message = "the graph that is chosen by default is safe; leave it out"
            yield FieldProblem(("unsafe",), message, "or write 'neighbours' and 'threshold'", of_key=True)

    def config(
        self, parts: tuple[RealPart | CountPart, ...], *, n_max: int, weight_max: int, quorum: int
    ) -> SecAggConfig:
        """Return what devices and coordinator agree on; raises what :class:`SecAggConfig` raises."""
        given = None
        if self.neighbours is not None and self.threshold is not None:
            given = GraphParameters(self.neighbours, self.threshold)
        return SecAggConfig(
            parts=parts,
            n_max=n_max,
            weight_max=weight_max,
            bits=self.bits,
            mode=Mode.ACTIVE if self.mode == "active" else Mode.SEMI_HONEST,
            corrupt=self.corrupt,
            dropout=self.dropout,
            # A quorum is of all updates; those reported in the clear are not in the sum.
            min_contributors=self.min_contributors if self.shielded else max(self.min_contributors, quorum),
            sparse=self.mode != "secagg",
            parameters=given,
            unsafe=self.unsafe,
        )


class Ckks(_SecureSum):
    """Homomorphic encryption under one key that all devices share (CKKS); needs the extra `he`."""

    mode: Literal["ckks"] = Field(description="ckks: homomorphic encryption")
    crypto: Literal["real", "modelled"] = Field(
        default="real",
        description="real: TenSEAL encrypts; modelled: bytes and simulated times alone",
    )

    def _problems(self) -> Iterator[FieldProblem]:
        yield from super()._problems()
        if self.crypto == "real" and not homomorphic.available():
            hint = "install it with \"pip install 'recfleet[he]'\", or write 'crypto: modelled'"
            yield FieldProblem(("mode",), "ckks needs the package tenseal", hint)


SecureAggregation = Annotated[NoSecureAggregation | Masking | Ckks, ByKey("mode")]
