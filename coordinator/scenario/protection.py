"""Whether a scenario's secure sums and privacy fit each other, and what is agreed for them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Final

from coordinator.scenario.data_section import SyntheticRegression
from coordinator.scenario.errors import FieldProblem
from coordinator.scenario.privacy_section import (
    CentralGaussian,
    DistributedDiscreteGaussian,
    LocalGaussian,
    PersonalGaussian,
    Privacy,
)
from coordinator.scenario.registered_sections import method_name
from coordinator.scenario.rounds_section import Rounds
from coordinator.scenario.sections import Sections
from coordinator.scenario.secure_section import Ckks, Masking, SecureAggregation, Shielded
from device_profiles.errors import Path
from edge.crypto.errors import (
    InfeasibleError,
    OverflowingConfigError,
    SecAggError,
    ThresholdError,
    TooFewContributorsError,
)
from edge.crypto.noise_scale import share_sd
from edge.homomorphic.config import CkksConfig
from edge.learning.accumulators import VALUE_MAX
from edge.learning.registry import METHODS
from edge.secagg.config import HONEST_AT_LEAST, CountPart, RealPart, SecAggConfig

Parts = tuple[RealPart | CountPart, ...]

ROOM_FOR_LOCAL_NOISE_SD: Final = 6.0
"""A sum clips what local noise makes of an element beyond so many of its standard deviations."""

_KEY_OF_ERROR: Final[dict[type[SecAggError], str]] = {
    OverflowingConfigError: "examples_max",
    TooFewContributorsError: "min_contributors",
    ThresholdError: "threshold",
    InfeasibleError: "dropout",
}
"""The key that an error of the plan of secure aggregation is shown at."""


def secure_sections(scenario: Sections) -> Iterator[tuple[Path, SecureAggregation]]:
    """Yield every section that says how updates are summed in some round, with its place."""
    phases = scenario.phases
    if not phases or any(phase.secure_aggregation is None for phase in phases):
        yield ("secure_aggregation",), scenario.secure_aggregation
    for index, phase in enumerate(phases):
        if phase.secure_aggregation is not None:
            yield ("phases", index, "secure_aggregation"), phase.secure_aggregation


def stays_on_devices(scenario: Sections) -> bool:
    """Return whether examples and loss are in no report and no sum: no noise would hide them."""
    return scenario.privacy is not None and not isinstance(scenario.privacy, CentralGaussian)


def secure_problems(scenario: Sections) -> Iterator[FieldProblem]:
    """Yield what keeps updates from being summed as the scenario says."""
    sections = list(secure_sections(scenario))
    dense = METHODS[method_name(scenario.learning)].dense(scenario.learning)
    if not dense and any(section.mode != "off" and _shielded(section) is None for _, section in sections):
        if METHODS[method_name(scenario.learning)].user_rows:
            message = METHODS[method_name(scenario.learning)].unsummable
            yield FieldProblem(
                ("learning", "algorithm"), message, "write 'fedmf' or 'fedrecon', or 'mode: off'"
            )
        else:
            message = "a sparse update names the items that a device rated, and cannot be summed securely"
            yield _upload_problem(scenario, message)
    for place, section in sections:
        if _shielded(section) is not None:
            yield from _shield_problems(scenario, (*place, "shielded"))
    planned = [(place, section) for place, section in sections if isinstance(section, Masking | Ckks)]
    if planned and scenario.rounds.cohort < HONEST_AT_LEAST:
        message = f"a secure sum needs {HONEST_AT_LEAST} devices or more, not {scenario.rounds.cohort}"
        yield FieldProblem(("rounds", "cohort"), message, "write more, or 'mode: off' in secure_aggregation")
        return
    for place, section in planned:
        yield from _plan_problems(scenario, place, section)


def _upload_problem(scenario: Sections, message: str) -> FieldProblem:
    """Return a problem of what is uploaded, at the setting of the method, or of the one that it wraps."""
    where = ("learning", "base") if hasattr(scenario.learning, "base") else ("learning",)
    return FieldProblem((*where, "upload"), message, f"write 'upload: dense' in {'.'.join(where)}")


def _shielded(section: SecureAggregation) -> Shielded | None:
    return section.shielded if isinstance(section, Masking) else None


def _shield_problems(scenario: Sections, place: Path) -> Iterator[FieldProblem]:
    """Yield why no device of a scenario may report in the clear beside a sum."""
    if not METHODS[method_name(scenario.learning)].has_masks:
        message = "judges the masks of fedmmf, and this method has none; leave it out"
        yield FieldProblem(place, message, None, of_key=True)
    elif scenario.privacy is not None:
        message = "a report in the clear would be outside the sum that the noise of 'privacy' protects"
        yield FieldProblem(place, message, "leave one of them out", of_key=True)


def _plan_problems(scenario: Sections, place: Path, section: Masking | Ckks) -> Iterator[FieldProblem]:
    """Yield why a sum cannot be planned as a section says, or why no round could ever have one."""
    wanted = scenario.rounds.cohort
    try:
        if isinstance(section, Masking):
            needed = masking_config(scenario, section, [("update", 1)]).contributors_needed(wanted)
        else:
            needed = ckks_config(scenario, section, [("update", 1)]).min_contributors
    except SecAggError as error:
        key = _KEY_OF_ERROR.get(type(error), "corrupt")
        if isinstance(error, InfeasibleError) and isinstance(section, Masking) and section.neighbours:
            key = "neighbours"
        noisy = isinstance(scenario.privacy, DistributedDiscreteGaussian)
        of_noise = noisy and isinstance(error, OverflowingConfigError)
        yield FieldProblem(("privacy", "noise_multiplier") if of_noise else (*place, key), str(error))
        return
    if needed > wanted:
        key = "min_contributors" if section.min_contributors > wanted else "corrupt"
        message = f"a sum needs {needed} contributors, and a round has {wanted} devices at most"
        yield FieldProblem((*place, key), message, "write less, or a larger cohort in rounds")


def device_sums_problems(
    scenario: Sections, rounds: Rounds, what: str, place_of_cohort: Path, instead: str
) -> Iterator[FieldProblem]:
    """Yield what keeps devices from reporting sums as those of the scenario's updates are made.

    Parameters
    ----------
    scenario : says how those are.
    rounds : how devices are asked.
    what, place_of_cohort : what they are asked for, as an error says it, and where its cohort is written.
    instead : what to write where there can be none.
    """
    wanted = rounds.cohort
    for place, section in secure_sections(scenario):
        if isinstance(section, Ckks):
            message = f"no sums of {what} under ckks: what devices report is not of the size of an update"
            yield FieldProblem((*place, "mode"), message, f"write 'mode: secagg-plus', or {instead}")
        elif isinstance(section, Masking):
            try:
                needed = sums_config(scenario, section, rounds, "sums", 1).contributors_needed(wanted)
            except SecAggError as error:
                yield FieldProblem(place_of_cohort, f"no sum over {wanted} devices can be made: {error}")
                continue
            if needed > wanted:
                message = f"a sum needs {needed} contributors, and there are {wanted} devices at most"
                yield FieldProblem(place_of_cohort, message, "write more")


def privacy_problems(scenario: Sections) -> Iterator[FieldProblem]:
    """Yield what contradicts the privacy that the scenario asks for."""
    privacy = scenario.privacy
    if privacy is None:
        for threshold in scenario.thresholds:
            bounded = threshold.metric == "privacy.clipped" and scenario.aggregation.norm_bound is not None
            if threshold.metric.startswith("privacy.") and not bounded:
                message = "is only known with a section 'privacy'"
                yield FieldProblem(("thresholds", threshold.written_key), message, None, of_key=True)
        return
    if METHODS[method_name(scenario.learning)].user_rows:
        message = "noise that hides a user in a sum leaves nothing of a row that one device alone changes"
        yield FieldProblem(
            ("learning", "algorithm"), message, "write 'fedmf' or 'fedrecon', or leave privacy out"
        )
        return
    method = METHODS[method_name(scenario.learning)]
    if method.hides_values:
        return  # refused with its reason elsewhere
    if not method.uploads:
        message = f"{method_name(scenario.learning)!r} uploads nothing that noise could hide; leave it out"
        yield FieldProblem(("privacy",), message, None, of_key=True)
    if not method.uniform(scenario.learning):
        message = "weights by examples leave no bound on what one user does to a sum"
        yield FieldProblem(("learning",), message, "write 'weighting: uniform', if the method has it")
    if not isinstance(privacy, CentralGaussian):
        if not method.dense(scenario.learning):
            message = "a sparse update names the items that a user rated, past any noise"
            yield _upload_problem(scenario, message)
    elif privacy.amplification == "sampling" and not scenario.rounds.selection.even:
        message = "counts on every device being as likely to be invited as any other"
        yield FieldProblem(("privacy", "amplification"), message, "write 'selection: random' in rounds")
    if isinstance(privacy, DistributedDiscreteGaussian):
        for place, section in secure_sections(scenario):
            if not isinstance(section, Masking):
                message = "noise in shares needs a sum under masks"
                yield FieldProblem((*place, "mode"), message, "write 'mode: secagg-plus'")


def value_problems(scenario: Sections) -> Iterator[FieldProblem]:
    """Yield what breaks the promise of a method that hides the values of ratings by noise of its own.

    Its sums are of all summands as they are, its model leaves once, and nothing but the sums follows from the
    values.
    """
    name, data, evaluation = method_name(scenario.learning), scenario.data, scenario.evaluation
    if not METHODS[name].hides_values or isinstance(data, SyntheticRegression):
        return
    if scenario.privacy is not None:
        message = f"how much is clipped would follow from the values that {name!r} hides by noise of its own"
        yield FieldProblem(("privacy",), f"{message}; leave it out", None, of_key=True)
    if scenario.aggregation.norm_bound is not None:
        message = f"how much is clipped would follow from the values that {name!r} hides; leave it out"
        yield FieldProblem(("aggregation", "norm_bound"), message, None, of_key=True)
    if scenario.aggregation.build() is not None:
        message = f"whose updates count would follow from the values that {name!r} hides"
        yield FieldProblem(("aggregation", "rule"), message, "write 'rule: mean'")
    for key, follows in (("positive", "which ratings are kept"), ("negatives", None)):
        if getattr(data, key) is not None:
            message = f"{follows} would follow from the values that {name!r} hides"
            if follows is None:
                message = f"where all that is rated counts as 1, {name!r} has no value left to hide"
            yield FieldProblem(("data", key), f"{message}; leave it out", None, of_key=True)
    if evaluation.on_devices:
        message = f"would hand the factors out to devices that {name!r} releases once, at the end"
        yield FieldProblem(("evaluation", "on"), message, "write 'on: test'")
    if evaluation.select is not None:
        message = f"which model is released would follow from the values that {name!r} hides; leave it out"
        yield FieldProblem(("evaluation", "select"), message, None, of_key=True)
    if scenario.inference is not None and scenario.inference.every != scenario.round_count:
        last = scenario.round_count
        message = f"would hand the factors out before {name!r} releases them, once, at the end"
        hint = "leave it out" if last is None else f"write 'every: {last}'"
        yield FieldProblem(("inference", *(() if last is None else ("every",))), message, hint)
    ends = f"when the run ends would follow from the values that {name!r} hides"
    if scenario.rounds.target is not None:
        yield FieldProblem(("rounds", "target"), f"{ends}; leave it out", None, of_key=True)
    for threshold in scenario.thresholds:
        if threshold.abort is not None and threshold.metric.startswith("model."):
            yield FieldProblem(("thresholds", *threshold.written_path), f"{ends}; leave 'abort' out")


def weight_max(scenario: Sections, section: Masking | Ckks) -> int:
    """Return the largest weight of an update: 1, or the most examples of a device."""
    uniform = METHODS[method_name(scenario.learning)].uniform(scenario.learning)
    return 1 if uniform else section.examples_max


def sum_parts(scenario: Sections, section: Masking | Ckks, arrays: Iterable[tuple[str, int]]) -> Parts:
    """Return the parts of a sum, without noise in shares.

    They are the arrays of an update, and the number of examples and the loss, unless privacy keeps those on
    the device.

    Parameters
    ----------
    scenario, section : what is asked for.
    arrays : names and lengths of the arrays of an update.
    """
    privacy = scenario.privacy
    clip = section.clip if privacy is None else _element_bound(privacy)
    if privacy is None or isinstance(privacy, CentralGaussian):
        return section.parts(arrays, clip, weight_max(scenario, section))
    return tuple(RealPart(name, length, clip) for name, length in arrays)


def _element_bound(privacy: Privacy) -> float:
    """Return the largest absolute value of an element of an update that is protected on the device."""
    clip = privacy.clip_norm
    if isinstance(privacy, PersonalGaussian):
        pairs = zip(privacy.tiers, privacy.weights, strict=True)
        clip *= max(
            weight * (1.0 + ROOM_FOR_LOCAL_NOISE_SD * tier.noise_multiplier) for tier, weight in pairs
        )
    elif isinstance(privacy, LocalGaussian):
        clip *= 1.0 + ROOM_FOR_LOCAL_NOISE_SD * privacy.multiplier
    return clip


def masking_config(scenario: Sections, section: Masking, arrays: Iterable[tuple[str, int]]) -> SecAggConfig:
    """Return what devices and coordinator agree on for the cohorts of the scenario.

    The arguments are those of :func:`sum_parts`. Raises what :class:`SecAggConfig` raises for a sum that
    could overflow or has no safe graph.
    """
    parts, largest = sum_parts(scenario, section, arrays), weight_max(scenario, section)
    return _with_shares(scenario.privacy, section, parts, scenario.rounds, largest)


def sums_config(scenario: Sections, section: Masking, rounds: Rounds, name: str, width: int) -> SecAggConfig:
    """Return what devices and coordinator agree on for sums of other than updates: one array, by name.

    ``rounds`` says how devices are asked. The ring has 64 bits whatever the section says: the array is short,
    and a mean of errors is wanted to many digits. Raises what :class:`SecAggConfig` raises.
    """
    privacy = scenario.privacy
    parts = (RealPart(name, width, VALUE_MAX if privacy is None else _element_bound(privacy)),)
    section = section.model_copy(update={"bits": 64, "shielded": None})
    return _with_shares(privacy, section, parts, rounds, 1)


def _with_shares(
    privacy: Privacy | None, section: Masking, parts: Parts, rounds: Rounds, largest_weight: int
) -> SecAggConfig:
    """Return what is agreed for cohorts of ``rounds``, with noise in shares where that is the mechanism."""
    plan: dict[str, Any] = {
        "n_max": rounds.cohort,
        "weight_max": largest_weight,
        "quorum": rounds.quorum_reports,
    }
    config = section.config(parts, **plan)
    if not isinstance(privacy, DistributedDiscreteGaussian):
        return config
    share = share_sd(privacy.multiplier * privacy.clip_norm, config.honest_contributors)
    noisy = tuple(RealPart(part.name, part.length, privacy.clip_norm, share) for part in parts)
    return section.config(noisy, **plan)


def ckks_config(scenario: Sections, section: Ckks, arrays: Iterable[tuple[str, int]]) -> CkksConfig:
    """Return what devices and coordinator agree on for homomorphic sums.

    The arguments are those of :func:`sum_parts`. Raises what :class:`CkksConfig` raises for a sum that could
    overflow.
    """
    return CkksConfig(
        sum_parts(scenario, section, arrays),
        n_max=scenario.rounds.cohort,
        weight_max=weight_max(scenario, section),
        min_contributors=max(section.min_contributors, scenario.rounds.quorum_reports),
    )
