"""The section ``aggregation``: the mean of updates, or what withstands poisoned ones."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import Field

from coordinator.scenario.errors import FieldProblem
from coordinator.scenario.model import Section, clip_problems
from device_profiles.fields import ByKey, PositiveFloat, PositiveFraction, PositiveInt
from edge.learning import robust_rules


class _Aggregation(Section):
    """What every rule has."""

    norm_bound: PositiveFloat | None = Field(
        default=None,
        description="largest L2 norm of what a device adds, its update times its weight; devices clip to it, "
        "and the coordinator refuses what is above where it sees single updates; none by default",
    )

    def _problems(self) -> Iterator[FieldProblem]:
        if self.norm_bound is not None:
            yield from clip_problems("norm_bound", self.norm_bound)

    def build(self) -> robust_rules.Rule | None:
        """Return the robust rule; None for a plain mean."""
        return None


class MeanRule(_Aggregation):
    """The weighted mean of the updates; one of them can move it anywhere."""

    rule: Literal["mean"] = Field(default="mean", description="mean: the weighted mean")


class _Coordinatewise(_Aggregation):
    """A rule on every coordinate by itself."""

    min_senders: PositiveInt = Field(
        default=3,
        description="where updates name rows: a row that fewer clients sent is left as it is in the round",
    )


class MedianRule(_Coordinatewise):
    """The coordinate-wise median (Yin et al. 2018, definition 1)."""

    rule: Literal["median"] = Field(description="median: the middle value of every coordinate")

    def build(self) -> robust_rules.Rule:
        """Return the rule."""
        return robust_rules.Median()


class TrimmedMeanRule(_Coordinatewise):
    """The coordinate-wise trimmed mean (Yin et al. 2018, definition 2)."""

    rule: Literal["trimmed-mean"] = Field(
        description="trimmed-mean: the mean of every coordinate without its smallest and largest values"
    )
    trim: PositiveFraction = Field(
        description="share of the values left out at either end, rounded up; below one half"
    )

    def _problems(self) -> Iterator[FieldProblem]:
        yield from super()._problems()
        if self.trim >= 0.5:
            yield FieldProblem(
                ("trim",), f"{self.trim:.0%} at either end leaves nothing; write less than 50%"
            )

    def build(self) -> robust_rules.Rule:
        """Return the rule."""
        return robust_rules.TrimmedMean(self.trim)


class KrumRule(_Aggregation):
    """The update closest to the others, or all but the farthest (Blanchard et al. 2017)."""

    rule: Literal["krum", "multi-krum"] = Field(
        description="krum: the one update that lies closest to the others; multi-krum: the mean of all but "
        "the farthest"
    )
    attackers: PositiveFraction = Field(
        description="share of false updates to withstand, rounded up to f; a round has more than 2·f + 2"
    )

    def build(self) -> robust_rules.Krum:
        """Return the rule."""
        return robust_rules.Krum(self.attackers, multi=self.rule == "multi-krum")


if TYPE_CHECKING:
    Aggregation = MeanRule | MedianRule | TrimmedMeanRule | KrumRule
else:
    Aggregation = Annotated[MeanRule | MedianRule | TrimmedMeanRule | KrumRule, ByKey("rule")]
