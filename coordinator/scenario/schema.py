"""The scenario: its sections put together, and what does not go together in them.

The reference of scenario files, the JSON Schema for editors and the flattened form of a scenario are all made
from its sections.
"""

from __future__ import annotations

from collections.abc import Iterator

from coordinator.scenario.aggregation_section import KrumRule
from coordinator.scenario.data_section import SyntheticRatingsSection, SyntheticRegression
from coordinator.scenario.errors import FieldProblem, did_you_mean
from coordinator.scenario.faults_section import STAGE_OF_LABEL, STAGE_ORDER, Fault, stages_of
from coordinator.scenario.metric_names import ERROR_METRICS, EXPOSURE, HELD_OUT_GROUPS, SPLITS
from coordinator.scenario.privacy_section import CentralGaussian, LocalGaussian, PersonalGaussian
from coordinator.scenario.protection import (
    device_sums_problems,
    privacy_problems,
    secure_problems,
    secure_sections,
    value_problems,
)
from coordinator.scenario.registered_sections import fitting_policies, method_name
from coordinator.scenario.rounds_section import Buffered, PartialWorkPacing, Tiers
from coordinator.scenario.sections import Sections
from coordinator.scenario.secure_section import Masking
from coordinator.scenario.thresholds import BASELINE, Threshold
from device_profiles.quantities import quoted
from edge.core.vocabulary import Way, label, labels
from edge.data.split import PUBLISHED_NEGATIVES
from edge.learning.registry import METHODS

_PLACE = ("rounds", "pacing")
_UNNOISED = "what devices reported without noise, of which no epsilon counts what the choice of a round shows"


class ScenarioSettings(Sections):
    """One scenario, complete: with it and the data, a run is determined to the last bit."""

    def _problems(self) -> Iterator[FieldProblem]:
        return problems(self)


def problems(scenario: Sections) -> Iterator[FieldProblem]:
    """Yield what is wrong between the sections of a scenario."""
    yield from _length_problems(scenario)
    yield from _client_problems(scenario)
    yield from _learning_problems(scenario)
    yield from _mean_query_problems(scenario)
    yield from _evaluation_problems(scenario)
    yield from _tag_problems(scenario)
    yield from _baseline_problems(scenario)
    yield from secure_problems(scenario)
    yield from privacy_problems(scenario)
    yield from value_problems(scenario)
    yield from _aggregation_problems(scenario)
    yield from _fault_problems(scenario)
    yield from _exposure_problems(scenario)
    yield from _pacing_problems(scenario)
    yield from _inference_problems(scenario)


def _length_problems(scenario: Sections) -> Iterator[FieldProblem]:
    names: set[str] = set()
    for index, phase in enumerate(scenario.phases):
        if phase.name in names:
            yield FieldProblem(("phases", index, "name"), f"a second phase {quoted(phase.name)}; rename one")
        names.add(phase.name)
        if (phase.rounds is None) != (scenario.phases[0].rounds is None):
            found, first = ("rounds", "time") if phase.time is None else ("time", "rounds")
            message = f"the first phase is measured in {first}; measure all phases alike"
            yield FieldProblem(("phases", index, found), message, None, of_key=True)
    total = scenario.phase_rounds
    if total is not None and scenario.rounds.count is not None and scenario.rounds.count != total:
        message = f"{scenario.rounds.count} is not the {total} rounds of the phases; leave count out"
        yield FieldProblem(("rounds", "count"), message)
    if not scenario.phases and scenario.rounds.count is None:
        yield FieldProblem(("rounds", "count"), "missing; write the number of rounds, or phases")


def _client_problems(scenario: Sections) -> Iterator[FieldProblem]:
    if not isinstance(scenario.data, SyntheticRatingsSection | SyntheticRegression):
        return
    clients = scenario.data.client_count
    if scenario.rounds.cohort > clients:
        message = (
            f"{scenario.rounds.cohort} devices, but the data has {clients} clients; write {clients} or less"
        )
        yield FieldProblem(("rounds", "cohort"), message)
    elif scenario.rounds.invited > clients:
        message = f"{scenario.rounds.invited} devices would be invited, but the data has {clients} clients"
        yield FieldProblem(("rounds", "over_select"), f"{message}; write less")


def _learning_problems(scenario: Sections) -> Iterator[FieldProblem]:
    name = method_name(scenario.learning)
    method = METHODS[name]
    needs = method.data
    has = "regression" if isinstance(scenario.data, SyntheticRegression) else "ratings"
    if needs != has:
        message = f"{name!r} learns from {needs}, but {scenario.data.source!r} gives {has}"
        fitting = sorted(one for one, entry in METHODS.items() if entry.data == has)
        yield FieldProblem(("learning", "algorithm"), message, f"methods for {has}: {', '.join(fitting)}")
    elif method.needs_features and getattr(scenario.data, "features", None) is None:
        does = "fits its masks to" if method.has_masks else "learns from"
        message = f"missing; {name} {does} the features of the items"
        yield FieldProblem(("data", "features"), message)
    elif method.user_rows and getattr(scenario.data, "grouped", False):
        message = f"{name!r} keeps a row of one user for each device"
        yield FieldProblem(("learning", "algorithm"), message, "write one user a client in data")


def _mean_query_problems(scenario: Sections) -> Iterator[FieldProblem]:
    """Yield why devices are not asked for the mean rating."""
    query, data, place = scenario.mean_query, scenario.data, ("data", "mean_query")
    if query is None or isinstance(data, SyntheticRegression):
        return
    name = method_name(scenario.learning)
    message = None
    if data.negatives is not None:
        message = "with data.negatives the mean follows from their number"
    elif not METHODS[name].begins_with_mean(scenario.learning):
        message = f"{name!r} begins with no mean rating as it is set"
    elif data.public is not None and data.public.rating_mean is not None:
        message = "contradicts 'rating_mean' in data.public; leave one of them out"
        yield FieldProblem(place, message, None, of_key=True)
        return
    elif isinstance(scenario.privacy, PersonalGaussian):
        message = "tiers report with weights of their own, which shrink a mean towards the lowest rating"
    elif isinstance(scenario.rounds.pacing, Buffered):
        message = "devices are asked in a round of its own, and buffered pacing has none"
    if message is not None:
        yield FieldProblem(place, f"{message}; leave it out", None, of_key=True)
        return
    clients, invited = _clients(scenario), scenario.query_rounds.invited
    if clients is not None and invited > clients and query.cohort is not None:
        message = f"{invited} devices would be invited, but the data has {clients} clients; write less"
        yield FieldProblem((*place, "cohort"), message)
    instead = "'rating_mean' in data.public in place of 'mean_query'"
    yield from device_sums_problems(
        scenario, scenario.query_rounds, "mean queries", (*place, "cohort"), instead
    )


def _tag_problems(scenario: Sections) -> Iterator[FieldProblem]:
    known = (
        ("phase", [phase.name for phase in scenario.phases]),
        ("way", labels(Way)),
        ("split", SPLITS),
        *HELD_OUT_GROUPS.items(),
    )
    parts = scenario.evaluation.parts
    for threshold in scenario.thresholds:
        split = dict(threshold.tags).get("split")
        if split in SPLITS and split not in parts:
            message = f"no {split} ratings are scored; write 'split={parts[0]}'"
            yield FieldProblem(("thresholds", threshold.written_key), message, None, of_key=True)
        figure = threshold.limit.relative_to
        if _tested_once(scenario, threshold) and figure not in (None, BASELINE):
            message = f"the test is scored once, after the chosen round: it has no {figure!r} of its own"
            advice = f"write '{threshold.metric}{{split=validation}}', or a figure in place of {figure!r}"
            yield FieldProblem(("thresholds", *threshold.written_path), message, advice)
        for tag in HELD_OUT_GROUPS:
            if tag in dict(threshold.tags) and tag not in scenario.evaluation.by:
                message = f"is only measured by {tag} on demand; write 'by: [{tag}]' in evaluation"
                yield FieldProblem(("thresholds", threshold.written_key), message, None, of_key=True)
        for tag, names in known:
            value = dict(threshold.tags).get(tag)
            if value is not None and value not in names:
                hint = did_you_mean(
                    value, names, listed="known values" if tag in HELD_OUT_GROUPS else f"{tag}s"
                )
                key = threshold.written_key
                yield FieldProblem(("thresholds", key), f"unknown {tag} {quoted(value)}", hint, of_key=True)


def _tested_once(scenario: Sections, threshold: Threshold) -> bool:
    """Return whether a threshold is about a metric of the test where only the chosen round is tested."""
    once = scenario.evaluation.select is not None and scenario.evaluation.part == "test"
    of_model = threshold.metric.startswith("model.") and threshold.metric != "model.loss"
    return once and of_model and dict(threshold.tags).get("split") != "validation"


def _baseline_problems(scenario: Sections) -> Iterator[FieldProblem]:
    for threshold in scenario.thresholds:
        if threshold.limit.relative_to == BASELINE and scenario.baseline is None:
            message = "compares with a baseline, and the scenario asks for none"
            hint = "write 'baseline: same-seed-without-faults', or compare with a value"
            yield FieldProblem(("thresholds", *threshold.written_path), message, hint)


def _evaluation_problems(scenario: Sections) -> Iterator[FieldProblem]:
    """Yield what keeps a model from being measured as the scenario says."""
    evaluation, data = scenario.evaluation, scenario.data
    masks = METHODS[method_name(scenario.learning)].has_masks
    if scenario.audit is not None and not (masks or scenario.audit.rated_items):
        message = "audits are of the masks of fedmmf; leave it out, or write 'rated_items: true'"
        yield FieldProblem(("audit",), message, None, of_key=True)
    if scenario.audit is not None and scenario.audit.rated_items and isinstance(data, SyntheticRegression):
        message = "samples are of no items; leave it out"
        yield FieldProblem(("audit", "rated_items"), message, None, of_key=True)
    if isinstance(data, SyntheticRegression):
        if evaluation.on_devices:
            message = "clients of a regression keep no samples back to measure on"
            yield FieldProblem(("evaluation", "on"), message, "leave it out")
        if evaluation.ranking is not None:
            message = "samples cannot be ranked; leave it out"
            yield FieldProblem(("evaluation", "ranking"), message, None, of_key=True)
        if evaluation.select is not None:
            message = "needs ratings kept back for validation, and clients of a regression keep none"
            yield FieldProblem(("evaluation", "select"), f"{message}; leave it out", None, of_key=True)
        if evaluation.by:
            message = "is about users and items, and samples have none; leave it out"
            yield FieldProblem(("evaluation", "by"), message, None, of_key=True)
        return
    if "validation" in evaluation.parts and not getattr(data.split, "validation", False):
        share = "true" if data.split.kind.endswith("leave-one-out") else "10%"
        message = f"the split keeps nothing back for validation; write 'validation: {share}' in data.split"
        yield FieldProblem(("evaluation", "on" if evaluation.on == "validation" else "select"), message)
    if evaluation.on_devices:
        yield from _on_devices_problems(scenario)
    yield from _implicit_problems(scenario)
    yield from _ranking_problems(scenario)


def _on_devices_problems(scenario: Sections) -> Iterator[FieldProblem]:
    """Yield what keeps devices from measuring the model."""
    clients, invited = _clients(scenario), scenario.evaluation_rounds.invited
    if isinstance(scenario.rounds.pacing, Buffered):
        message = "devices measure the model between rounds, and buffered pacing has none"
        yield FieldProblem(("evaluation", "on"), message, "write 'on: test', or another pacing")
    if clients is not None and invited > clients and scenario.evaluation.cohort is not None:
        message = f"{invited} devices would be invited, but the data has {clients} clients; write less"
        yield FieldProblem(("evaluation", "cohort"), message)
    rounds, place = scenario.evaluation_rounds, ("evaluation", "cohort")
    yield from device_sums_problems(scenario, rounds, "evaluations", place, "'on: test'")


def _implicit_problems(scenario: Sections) -> Iterator[FieldProblem]:
    """Yield what does not go together where predictions are no ratings."""
    data = scenario.data
    assert not isinstance(data, SyntheticRegression)
    method = METHODS[method_name(scenario.learning)]
    only_ranks = method.only_ranks(scenario.learning)
    if scenario.evaluation.ranking is None and (only_ranks or scenario.draws_items):
        whose = "this method predicts" if only_ranks else "with data.negatives a method predicts"
        message = f"missing; {whose} no ratings, only which items somebody takes to"
        yield FieldProblem(("evaluation", "ranking"), f"{message}; write 'ranking: {{}}' in evaluation")
    ranking = scenario.evaluation.ranking
    whole = ranking is None or ranking.negatives == "full"
    if data.held_out_negatives == "symmetric" and scenario.draws_items and whole:
        message = (
            "with all items ranked there is none left to draw; write 'negatives: 99' in evaluation.ranking,"
            " or 'drawn'"
        )
        yield FieldProblem(("data", "held_out_negatives"), message)
    if data.negatives is None and METHODS[method_name(scenario.learning)].learns_ones(scenario.learning):
        message = (
            "is a loss of ones and zeros; write 'negatives: 4' in data, so that devices draw zeros, or"
            " 'loss: squared-error'"
        )
        yield FieldProblem(("learning", "loss"), message, None, of_key=True)
    select = scenario.evaluation.select
    if (only_ranks or scenario.draws_items) and select is not None and f"model.{select}" in ERROR_METRICS:
        message = "no ratings are predicted, so that there are no errors; write a metric of rankings"
        yield FieldProblem(("evaluation", "select"), message)
    if data.negatives is None:
        return
    if only_ranks:
        message = (
            "this method draws negatives by itself; write 'negatives' in learning instead"
            if method.draws_items(scenario.learning)
            else "this method learns from all that a user has not rated; leave it out"
        )
        yield FieldProblem(("data", "negatives"), message, None, of_key=True)
    reason = "and with data.negatives there are only ones and zeros; leave it out"
    if scenario.audit is not None and method.has_masks:
        yield FieldProblem(("audit",), f"audits compare masks with ratings, {reason}", None, of_key=True)
    for place, section in secure_sections(scenario):
        if isinstance(section, Masking) and section.shielded is not None:
            message = f"masks are judged by ratings, {reason}"
            yield FieldProblem((*place, "shielded"), message, None, of_key=True)


def _ranking_problems(scenario: Sections) -> Iterator[FieldProblem]:
    """Yield what does not suit the split where a held-out item is ranked among sampled ones."""
    data, ranking = scenario.data, scenario.evaluation.ranking
    if ranking is None or ranking.negatives == "full":
        return
    assert not isinstance(data, SyntheticRegression)
    kind = data.split.kind
    if kind == "published-leave-one-out" and ranking.negatives != PUBLISHED_NEGATIVES:
        message = f"the published split has {PUBLISHED_NEGATIVES} negatives a user; write that, or 'full'"
        yield FieldProblem(("evaluation", "ranking", "negatives"), message)
    elif kind not in ("leave-one-out", "published-leave-one-out"):
        message = (
            "sampled negatives rank one held-out rating a user, and split"
            f" {kind!r} does not hold back one each; write 'full', or"
            " 'kind: leave-one-out' in data.split"
        )
        yield FieldProblem(("evaluation", "ranking", "negatives"), message)


def _fault_problems(scenario: Sections) -> Iterator[FieldProblem]:
    """Yield the faults that cannot strike."""
    names: set[str] = set()
    for index, fault in enumerate(scenario.faults):
        for problem in _phase_problems(scenario, fault):
            yield problem._replace(path=("faults", index, *problem.path))
        if fault.name in names:
            yield FieldProblem(("faults", index, "name"), f"a second fault {quoted(fault.name)}; rename one")
        names.add(fault.name)
    if isinstance(scenario.data, SyntheticRatingsSection | SyntheticRegression):
        yield from unknown_victims(scenario, scenario.data.client_count)


def _exposure_problems(scenario: Sections) -> Iterator[FieldProblem]:
    """Yield what keeps an item from being promoted, or its exposure from being measured."""
    name, asked = method_name(scenario.learning), scenario.evaluation.exposure
    regression = isinstance(scenario.data, SyntheticRegression)
    wanted = None if asked is None else asked.item
    for index, fault in enumerate(scenario.faults):
        item, path = fault.kinds[0].promoted_item if fault.keys else None, ("faults", index, fault.key)
        if item is None:
            continue
        if not METHODS[name].has_item_rows(scenario.learning):
            message = f"{name!r} has no scores that are the product of a user's vector and an item's row"
            fitting = [one for one, method in METHODS.items() if method.row_arrays]
            hint = f"write another fault, or one of {', '.join(fitting)} in learning"
            yield FieldProblem(path, f"{message}, which this attack aims at", hint, of_key=True)
        elif wanted is not None and item != wanted:
            message = f"{quoted(item)} is a second item beside {quoted(wanted)}, and one is measured"
            yield FieldProblem((*path, "item"), message, f"write 'item: {wanted}' everywhere")
        wanted = wanted or item
    if asked is not None and regression:
        message = "is about items, and samples have none; leave it out"
        yield FieldProblem(("evaluation", "exposure"), message, None, of_key=True)
    exposure = scenario.exposure
    for threshold in scenario.thresholds:
        metric = threshold.metric
        if metric.startswith(f"model.{EXPOSURE}@") and (
            exposure is None or int(metric.partition("@")[2]) not in exposure.k
        ):
            message = "is only measured with that length in 'evaluation.exposure.k'"
            if exposure is None:
                message = "is only measured of an item; write 'exposure: {}' in evaluation"
            yield FieldProblem(("thresholds", threshold.written_key), message, None, of_key=True)


def _phase_problems(scenario: Sections, fault: Fault) -> Iterator[FieldProblem]:
    phases = [phase.name for phase in scenario.phases]
    unknown = False
    for place, phase in enumerate(fault.during or ()):
        if phase not in phases:
            unknown = True
            hint = did_you_mean(phase, phases, listed="phases") or "the scenario has no phases"
            path = ("during",) if len(fault.during or ()) == 1 else ("during", place)
            yield FieldProblem(path, f"unknown phase {quoted(phase)}", hint)
    if fault.at_stage is None or unknown:
        return
    sections = dict.fromkeys(scenario.secure_in(phase) for phase in fault.during or phases or [""])
    reached = dict.fromkeys(stage for section in sections for stage in stages_of(section))
    kinds = list(zip(fault.keys, fault.kinds, strict=True))
    if fault.at_stage not in reached:
        message = f"no device comes to the stage {quoted(fault.at_stage)} there"
    else:
        free = [key for key, kind in kinds if fault.at_stage not in map(label, kind.stages)]
        if not free:
            return
        message = f"{free[0]} cannot be pinned to {quoted(fault.at_stage)}: {dict(kinds)[free[0]].elsewhere}"
    common = frozenset.intersection(*(kind.stages for _, kind in kinds))
    fitting = [label(stage) for stage in STAGE_ORDER if stage in common and label(stage) in reached]
    hint = f"write one of {', '.join(fitting)}" if fitting else "leave it out"
    if fault.at_stage not in STAGE_OF_LABEL:
        hint = did_you_mean(fault.at_stage, fitting) or hint
    yield FieldProblem(("at_stage",), message, hint)


def unknown_victims(scenario: Sections, clients: int) -> Iterator[FieldProblem]:
    """Yield the devices that a fault names and that a fleet of as many ``clients`` does not have."""
    for index, fault in enumerate(scenario.faults):
        for place, device in enumerate(fault.on.devices or ()):
            if device >= clients:
                message = f"there is no device {device}; the last of {clients} is {clients - 1}"
                yield FieldProblem(("faults", index, "on", "devices", place), message)


def _aggregation_problems(scenario: Sections) -> Iterator[FieldProblem]:
    """Yield why a scenario cannot aggregate as its section says."""
    section = scenario.aggregation
    if section.norm_bound is not None and scenario.privacy is not None:
        message = "'privacy.clip_norm' bounds the updates already; leave it out"
        yield FieldProblem(("aggregation", "norm_bound"), message, None, of_key=True)
    if section.build() is None:
        return
    if METHODS[method_name(scenario.learning)].user_rows:
        message = f"{section.rule!r} compares updates, and a user's row is in one alone"
        yield FieldProblem(("aggregation", "rule"), message, "write 'rule: mean', or another algorithm")
    if any(sum_.mode != "off" for _, sum_ in secure_sections(scenario)):
        message = f"{section.rule!r} looks at single updates, and a secure sum shows none"
        hint = "write 'rule: mean' with a norm_bound, or 'mode: off' in secure_aggregation"
        yield FieldProblem(("aggregation", "rule"), message, hint)
    if scenario.privacy is not None and not isinstance(scenario.privacy, LocalGaussian):
        message = (
            f"{section.rule!r} is no sum, and the noise of {scenario.privacy.mechanism!r} is sized for one"
        )
        yield FieldProblem(
            ("aggregation", "rule"), message, "write 'rule: mean', or 'mechanism: local-gaussian'"
        )
    if isinstance(section, KrumRule):
        yield from _krum_problems(scenario, section)


def _krum_problems(scenario: Sections, section: KrumRule) -> Iterator[FieldProblem]:
    """Yield why a round could have too few reports for Krum to mean anything."""
    rule = section.build()
    for reports in range(scenario.rounds.quorum_reports, scenario.rounds.cohort + 1):
        false = rule.false(reports)
        if reports <= 2 * false + 2:
            needed = 2 * false + 3
            message = f"{false} false reports are withstood in {needed}, and a round may have {reports}"
            yield FieldProblem(
                ("aggregation", "attackers"), message, "write less, or a higher quorum in rounds"
            )
            return


def _pacing_problems(scenario: Sections) -> Iterator[FieldProblem]:
    """Yield what keeps devices from being selected and waited for as the scenario says."""
    yield from _selection_problems(scenario)
    pacing = scenario.rounds.pacing
    if isinstance(pacing, Buffered):
        yield from _buffered_problems(scenario, pacing)
        return
    if isinstance(pacing, PartialWorkPacing):
        yield from _partial_work_problems(scenario)
    elif isinstance(pacing, Tiers):
        yield from _tier_problems(scenario, pacing)
    if pacing.grace is not None and _sums_securely(scenario):
        message = "under secure aggregation every stage has a deadline of its own; leave it out"
        yield FieldProblem((*_PLACE, "grace"), message, None, of_key=True)


def _selection_problems(scenario: Sections) -> Iterator[FieldProblem]:
    selection = scenario.rounds.selection
    place = ("rounds", "selection")
    if selection.by_reports and _noise_on_sums(scenario):
        message = f"{selection.name!r} looks at {_UNNOISED}"
        yield FieldProblem(place, message, _advice("by_reports"))
        return
    if not selection.needs_losses:
        return
    hint = _advice("needs_losses")
    message = f"{selection.name!r} looks at the losses of single devices, which nobody sees"
    if _sums_securely(scenario):
        yield FieldProblem(place, f"{message} under secure aggregation", hint)
    elif scenario.privacy is not None and not isinstance(scenario.privacy, CentralGaussian):
        yield FieldProblem(place, f"{message} where noise is added on the device", hint)


def _advice(unfit: str) -> str:
    first, rest = fitting_policies(unfit).split("'", 2)[1:]
    return f"write 'selection: {first}'{rest}"


def _noise_on_sums(scenario: Sections) -> bool:
    privacy = scenario.privacy
    return isinstance(privacy, CentralGaussian) and privacy.multiplier > 0


def _sums_securely(scenario: Sections) -> bool:
    return any(section.mode != "off" for _, section in secure_sections(scenario))


def _buffered_problems(scenario: Sections, pacing: Buffered) -> Iterator[FieldProblem]:
    """Yield what cannot be had without rounds."""
    rounds, mode = scenario.rounds, (*_PLACE, "mode")
    if _sums_securely(scenario):
        message = "a secure sum is over devices that began with the same model; a buffer mixes models"
        yield FieldProblem(mode, message, "write another mode, or 'mode: off' in secure_aggregation")
    if scenario.privacy is not None:
        message = "what privacy has been spent is accounted for by rounds, which a buffer does not have"
        yield FieldProblem(mode, message, "write another mode, or leave privacy out")
    if METHODS[method_name(scenario.learning)].user_rows:
        message = "a user's row on the coordinator could change under its own device"
        yield FieldProblem(mode, message, "write another mode, or another algorithm in learning")
    if getattr(scenario.learning, "stop_gradient_norm", 0.0) > 0:
        message = "reports on several models do not add up to a gradient, whose norm could be looked at"
        yield FieldProblem(
            ("learning", "stop_gradient_norm"), message, "leave it out, or write another pacing"
        )
    if rounds.over_select > 1:
        message = "nobody is invited in vain with buffered pacing; leave it out"
        yield FieldProblem(("rounds", "over_select"), message, None, of_key=True)
    if rounds.interval > 0:
        message = "there is no pause between the steps of buffered pacing; leave it out"
        yield FieldProblem(("rounds", "interval"), message, None, of_key=True)
    yield from _unbuffered_fault_problems(scenario)
    clients = _clients(scenario)
    if clients is not None and pacing.concurrency > clients:
        message = f"{pacing.concurrency} devices at work, but the data has {clients} clients"
        yield FieldProblem((*_PLACE, "concurrency"), f"{message}; write {clients} or less")


def _unbuffered_fault_problems(scenario: Sections) -> Iterator[FieldProblem]:
    """Yield the faults that are about the devices of one round together."""
    for index, fault in enumerate(scenario.faults):
        if fault.kind.of_rounds:
            message = "strikes the devices of a round together, and a buffer has no rounds"
            path = ("faults", index, fault.key)
            yield FieldProblem(path, message, "write another fault, or another pacing", of_key=True)
        if fault.on.slowest is not None:
            message = "no round says who is slowest in it: a buffer has none; leave it out"
            yield FieldProblem(("faults", index, "on", "slowest"), message, None, of_key=True)


def _partial_work_problems(scenario: Sections) -> Iterator[FieldProblem]:
    """Yield why devices cannot do a part of their work."""
    mode = (*_PLACE, "mode")
    if not METHODS[method_name(scenario.learning)].stepwise(scenario.learning):
        message = "an update of this method is not made of local steps, of which a part could be done"
        yield FieldProblem(mode, message, "write another mode, or 'method: gradient-steps' in learning.local")
    elif getattr(scenario.learning, "stop_gradient_norm", 0.0) > 0:
        message = "the norm of an update says nothing of the gradient when devices take fewer steps"
        yield FieldProblem(
            ("learning", "stop_gradient_norm"), message, "leave it out, or write another pacing"
        )
    if not isinstance(scenario.data, SyntheticRegression) and scenario.data.grouped:
        message = "devices that hold several users do not share their time among them"
        yield FieldProblem(mode, message, "write another mode, or one user a client in data")
    if _sums_securely(scenario) or scenario.privacy is not None:
        what = "secure sums" if _sums_securely(scenario) else "privacy"
        message = f"partial work weighs a part of an update, and {what} need whole weights"
        yield FieldProblem(mode, message, "write another mode")


def _tier_problems(scenario: Sections, pacing: Tiers) -> Iterator[FieldProblem]:
    """Yield why there may be no tiers, or why none could ever fill a round."""
    if _noise_on_sums(scenario):
        message = f"tiers are by speed: {_UNNOISED}"
        yield FieldProblem((*_PLACE, "mode"), message, "write another mode, or leave privacy out")
    clients, needed = _clients(scenario), scenario.rounds.quorum_reports
    if clients is not None and clients // pacing.tiers < needed:
        message = (
            f"a tier would have {clients // pacing.tiers} of the {clients} devices, fewer than the quorum of"
            f" {needed}"
        )
        yield FieldProblem((*_PLACE, "tiers"), message, "write fewer tiers, or a lower quorum")


def _clients(scenario: Sections) -> int | None:
    """Return how many clients there are, where the scenario alone says so."""
    data = scenario.data
    return data.client_count if isinstance(data, SyntheticRatingsSection | SyntheticRegression) else None


def _inference_problems(scenario: Sections) -> Iterator[FieldProblem]:
    """Yield what keeps devices of a scenario from running models of their own."""
    section, data = scenario.inference, scenario.data
    if section is None:
        for threshold in scenario.thresholds:
            if threshold.metric.startswith("inference."):
                message = "is only known with a section 'inference'"
                yield FieldProblem(("thresholds", threshold.written_key), message, None, of_key=True)
        return
    method = method_name(scenario.learning)
    if METHODS[method].data != "ratings":
        message = f"{method} ranks no items, so that devices have nothing to run; leave it out"
        yield FieldProblem(("inference",), message, None, of_key=True)
        return
    if isinstance(data, SyntheticRegression):
        return  # refused elsewhere
    if data.clients is not None or (data.users_per_client or 1) > 1:
        key = "users_per_client" if data.clients is None else "clients"
        message = "a device of several users has no model of its own; leave this or the section inference out"
        yield FieldProblem(("data", key), message, None, of_key=True)
        return
    count = scenario.round_count
    if count is not None and section.every > count:
        message = f"there are {count} rounds, so no device would ever run its model; write {count} or less"
        yield FieldProblem(("inference", "every"), message)
    if isinstance(data, SyntheticRatingsSection) and section.devices > data.client_count:
        message = f"{section.devices} devices, but the data has {data.client_count} clients"
        yield FieldProblem(("inference", "devices"), message, f"write {data.client_count} or less")
