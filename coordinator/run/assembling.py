"""From a scenario to what a run works with: data, method, fleet."""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final, NoReturn, cast

import numpy as np

from coordinator.engine.aggregation.ranges import ReportRanges
from coordinator.engine.assembly import Assembly
from coordinator.engine.device_sums import SUMS
from coordinator.engine.evaluation import (
    RatingEvaluator,
    RegressionEvaluator,
    SummedMetrics,
    sampled_candidates,
)
from coordinator.engine.exposure import Exposure, item_called
from coordinator.engine.fleet import Fleet
from coordinator.engine.host import memory_bytes
from coordinator.engine.mean_query import MeanQuery, MeanScale, MeanWorkload, RatingMean
from coordinator.engine.samplers import barred_items
from coordinator.engine.secure_sums import SecureSums, lengths
from coordinator.engine.workload import (
    DrawnItems,
    RatingWorkload,
    RegressionWorkload,
    RemoteWorkload,
    Workload,
    rating_problem,
)
from coordinator.scenario.data_section import (
    SHUFFLED_SPLITS,
    TIMED_SPLITS,
    FileRatings,
    LeaveOneOutSplit,
    MeanQuerySection,
    NoSplit,
    PublicFacts,
    PublishedSplit,
    RatioSplit,
    SyntheticRatingsSection,
    SyntheticRegression,
    TemporalSplit,
    UserSplit,
    UserTemporalSplit,
)
from coordinator.scenario.errors import ScenarioError
from coordinator.scenario.load import LoadedScenario
from coordinator.scenario.privacy_section import LocalGaussian, PersonalGaussian
from coordinator.scenario.protection import (
    ckks_config,
    masking_config,
    secure_sections,
    sums_config,
)
from coordinator.scenario.ratings import file_facts, item_features, read_data
from coordinator.scenario.registered_sections import method_name
from coordinator.scenario.rounds_section import ExposureSection, InferenceSection, Rounds
from coordinator.scenario.schema import ScenarioSettings, unknown_victims
from coordinator.scenario.secure_section import (
    Ckks,
    Masking,
    NoSecureAggregation,
    SecureAggregation,
    Shielded,
)
from coordinator.simulation.fleet_assembly import build_fleet
from device_profiles.errors import DocumentError, Path
from device_profiles.units import format_bytes
from edge.data.clients import Clients, group_users, one_user_per_client
from edge.data.split import (
    Split,
    split_leave_one_out,
    split_none,
    split_ratio,
    split_temporal,
    split_user_temporal,
    split_users,
)
from edge.data.store import RatingStore
from edge.data.synthetic import KEPT_RATINGS
from edge.learning.base import Algorithm, Problem, Recommender
from edge.learning.registry import METHODS, create
from edge.learning.updates import ROWS
from edge.secagg.config import SecAggConfig

# The others are imported where they are used: runs that do without them, which are most, start sooner.
if TYPE_CHECKING:
    from coordinator.engine.device_evaluation import DeviceEvaluation
    from coordinator.engine.inference import DeviceInference
    from coordinator.engine.shielding import Shield
    from edge.data.published import PublishedRatings
    from edge.data.table.reading import RatingsFile
    from edge.learning.promotion import PromotedItem

_BYTES_OF_DEVICE: Final = 32
_BYTES_OF_RATING: Final = 16
_FLOAT64_BYTES: Final = 8
"""What is needed at least, so that nothing is refused that fits."""


def assemble(loaded: LoadedScenario) -> Assembly:
    """Read or make the data, and build method and fleet.

    Raises
    ------
    DataError : data that cannot be read.
    ScenarioError : the data does not suit the scenario: fewer clients than the rounds ask for, a user with
        fewer unrated items than the negatives to sample, a model above the limit of a frame.
    """
    start_s = time.perf_counter()
    assembly = _assemble(loaded)
    complete(loaded, assembly)
    assembly.wall_s = time.perf_counter() - start_s
    return assembly


def complete(loaded: LoadedScenario, assembly: Assembly) -> None:
    """Add to data, method and fleet how reports are summed, protected, checked and measured.

    Raises ``ScenarioError`` as :func:`assemble`.
    """
    workload = assembly.workload
    assembly.secure_sums = _secure_sums(loaded, workload)
    scenario = loaded.scenario
    if scenario.evaluation.on_devices and assembly.evaluator.unscored is None:
        assert isinstance(workload, RatingWorkload | RemoteWorkload), "the scenario was checked"
        evaluator = assembly.evaluator if isinstance(assembly.evaluator, RatingEvaluator) else None
        assembly.device_evaluation = _device_evaluation(loaded, workload, evaluator)
    if scenario.mean_query is not None:
        assert isinstance(workload, RatingWorkload | RemoteWorkload), "the scenario was checked"
        assembly.mean_query = _mean_query(loaded, workload, scenario.mean_query)
    assembly.shields = _shields(loaded, workload)
    assembly.ranges = ReportRanges.of(loaded.scenario, workload)
    if loaded.scenario.privacy is not None:
        activity = workload.held(np.arange(workload.n_clients))
        elements = sum(length for _, length in lengths(workload.algorithm.summed_spec()))
        asked = assembly.asked()
        elements = max([elements, *(one.workload.width for one in asked.values())])
        from coordinator.engine.privacy import RunPrivacy  # noqa: PLC0415 - most runs do without

        assembly.privacy = RunPrivacy(loaded.scenario, assembly.secure_sums, activity, elements, asked)
    _check_frames(loaded, assembly)


def _assemble(loaded: LoadedScenario) -> Assembly:
    scenario = loaded.scenario
    seed = scenario.seed
    _check_data_memory(loaded)
    if isinstance(scenario.data, SyntheticRegression):
        from edge.data.regression import generate_regression  # noqa: PLC0415 - most runs do without

        data = scenario.data
        store = generate_regression(
            clients=data.clients,
            samples_per_client=data.samples_per_client,
            features=data.features,
            heterogeneity=data.heterogeneity,
            noise_sd=data.noise,
            seed=seed,
        )
        algorithm = create(scenario.learning, Problem(n_features=store.n_features))
        _check_model_memory(loaded, algorithm, store.n_features)
        regression = RegressionWorkload(algorithm, store, seed)
        facts: dict[str, Any] = {"clients": store.n_clients, "data_hash": store.content_hash()}
        fleet = build_fleet(loaded, store.n_clients)
        return Assembly(regression, fleet, RegressionEvaluator(regression, seed), facts)
    published = _published(loaded)
    read: RatingsFile | None
    if published is None:
        ratings, read = read_data(loaded)
        split = _split(loaded, ratings)
    else:
        read, split = published.file, published.split
        ratings = read.store
    facts = {} if read is None else file_facts(read, ratings)
    if published is not None:
        facts |= {"rated_negatives": published.rated_negatives}
    clients = _clients(scenario.data, split, seed)
    _check_cohort(loaded, clients.n_clients)
    _check_victims(loaded, clients.n_clients)
    if published is None:
        _check_negatives(loaded, ratings)
    if split.newcomers.size:
        facts["newcomers"] = split.newcomers.size
    facts |= {
        "clients": clients.n_clients,
        "users": ratings.n_users,
        "items": ratings.n_items,
        "ratings": ratings.n_ratings,
        "training_ratings": split.train.n_ratings,
        "split": split.kind,
        "split_hash": split.hash,
    }
    features = item_features(loaded, ratings)
    if features is not None:
        facts |= {
            "features": list(features.names),
            "featured_items": int(np.count_nonzero(features.known)),
            "features_hash": features.content_hash(),
        }
    drawn = DrawnItems(scenario.data.negatives, _barred(loaded, split, published))
    problem = rating_problem(split, None if features is None else features.values, drawn)
    public = scenario.data.public
    if public is not None:
        _check_public(loaded, public, clients.n_clients, ratings.n_items)
    mean = known_mean(scenario, public, problem.rating_mean)
    problem = dataclasses.replace(problem, rating_mean=mean.number)
    recommender = cast(Recommender, create(scenario.learning, problem))
    _check_model_memory(loaded, recommender, ratings.n_items)
    _check_audit(loaded, recommender)
    timed = METHODS[method_name(scenario.learning)].timed
    if timed and not split.train.timed:
        _refuse_timeless(loaded)
    notices = list(_notices(scenario, split, ratings, timed=timed))
    workload = RatingWorkload(recommender, split, clients, seed, timed=timed, drawn=drawn)
    fleet = build_fleet(loaded, clients.n_clients)
    negatives = None
    if published is not None and scenario.evaluation.part == "test":
        negatives = published.negatives
    exposure = _exposure(loaded, split.train)
    measured = None if scenario.exposure is None else exposure
    evaluator = RatingEvaluator(workload, fleet, scenario.evaluation, seed, negatives, measured)
    validation = _validation(loaded, workload, fleet, measured)
    target: PromotedItem | None = None
    if exposure is not None and scenario.promoted_item is not None:
        from edge.learning.promotion import PromotedItem  # noqa: PLC0415 - most runs do without

        target = PromotedItem(exposure.item, recommender.row_arrays)
    catalogue = _catalogue(ratings, read)
    inference: DeviceInference | None = None
    if scenario.inference is not None:
        from coordinator.engine.inference import DeviceInference  # noqa: PLC0415
        from coordinator.results.export import model_info  # noqa: PLC0415

        _check_inference(loaded, scenario.inference, clients.n_clients)
        names = () if features is None else features.names
        # Not the name of the file: the size of a model must follow from the scenario.
        info = model_info(loaded.hash[:8], scenario, catalogue, ratings.n_items, names)
        inference = DeviceInference(scenario.inference, workload, fleet, info, seed)
    return Assembly(
        workload,
        fleet,
        evaluator,
        facts,
        catalogue=catalogue,
        inference=inference,
        notices=notices,
        validation=validation,
        target=target,
        known_mean=mean if begins_with_mean(scenario) else None,
    )


def begins_with_mean(scenario: ScenarioSettings) -> bool:
    """Return whether the method of a scenario begins with the mean rating."""
    return METHODS[method_name(scenario.learning)].begins_with_mean(scenario.learning)


def known_mean(scenario: ScenarioSettings, public: PublicFacts | None, of_data: float | None) -> RatingMean:
    """Return the mean rating before the first round.

    Parameters
    ----------
    scenario : what is run.
    public : what is said publicly of the ratings.
    of_data : the mean of the ratings that are here; None where there are none.
    """
    data = scenario.data
    assert not isinstance(data, SyntheticRegression), "of ratings alone"
    if scenario.mean_query is not None:
        return RatingMean(None, "devices")
    if data.negatives is not None:
        return RatingMean(1.0 / (1 + data.negatives) if of_data is None else of_data, "negatives")
    if public is not None and public.rating_mean is not None:
        return RatingMean(public.rating_mean, "public")
    return RatingMean(of_data, "data")


def _validation(
    loaded: LoadedScenario, workload: RatingWorkload, fleet: Fleet, exposure: Exposure | None
) -> RatingEvaluator | None:
    """Return what measures on validation ratings where the round is chosen on them and tested afterwards."""
    section = loaded.scenario.evaluation
    if section.select is None:
        return None
    on_validation = section.model_copy(update={"on": "validation"})
    found = RatingEvaluator(workload, fleet, on_validation, loaded.scenario.seed, exposure=exposure)
    if found.unscored is not None:
        path = ("evaluation", "select")
        hint = "leave it out, or keep more back"
        raise ScenarioError([DocumentError(loaded.document.position(path), path, found.unscored, hint)])
    return None if section.part == "validation" else found


def _notices(scenario: ScenarioSettings, split: Split, ratings: RatingStore, *, timed: bool) -> Iterator[str]:
    """Yield what limits what a run shows of its method, a sentence each."""
    method, evaluation = method_name(scenario.learning), scenario.evaluation
    if scenario.rounds.target is not None and evaluation.parts == ("test",):
        yield (
            "'rounds.target' ends training by a figure on test ratings: the last round is chosen by what it"
            " is scored on. Write 'select' in evaluation, so that it is reached on validation ratings"
        )
    if timed and split.kind in SHUFFLED_SPLITS:
        yield (
            f"{method} reads ratings in the order of time, and 'data.split' {split.kind} keeps back random"
            " ones: it is given ratings that are later than those it is scored on. Write"
            " 'kind: user-temporal', 'temporal' or 'leave-one-out'"
        )
    if split.kind == "leave-one-out" and not ratings.timed:
        yield "the data has no times: the one rating of each user that is kept back is drawn at random"
    if split.kind == "temporal" and split.test is not None:
        cold = int(split.test.item_counts()[split.train.item_counts() == 0].sum())
        if cold:
            yield f"{cold:,} test ratings are of items that nobody had rated before the moment of the split"
    if split.newcomers.size:
        test = 0 if split.test is None else int(split.test.counts[split.newcomers].sum())
        yield (
            f"{split.newcomers.size:,} of {ratings.n_users:,} users rated nothing before the moment of the"
            f" split: they have no device and are not scored; {test:,} test ratings are theirs"
        )


def _catalogue(store: RatingStore, read: RatingsFile | None) -> dict[str, Any]:
    """Return the contents of ``items.json``.

    ``titles`` is what people call each item, or null where the data does not say. ``labels`` has the id of
    each item in the data, in the order of the model's rows, or null for generated data, whose ids are the
    indices. ``rating_range`` is the lowest and the highest rating; null without any.
    """
    titles, limits = None, store.limits()
    if read is not None:
        from edge.data.readers.titles import read_item_titles  # noqa: PLC0415

        titles = read_item_titles(read)
    return {
        "labels": None if store.item_ids is None else store.item_ids.tolist(),
        "rating_range": None if limits is None else list(limits),
        "titles": None if titles is None else list(titles),
    }


def _barred(loaded: LoadedScenario, split: Split, published: PublishedRatings | None) -> RatingStore | None:
    """Return what no device draws as a negative; see :mod:`coordinator.engine.samplers`."""
    scenario = loaded.scenario
    assert not isinstance(scenario.data, SyntheticRegression)
    sampler, ranking, candidates = scenario.data.held_out_negatives, scenario.evaluation.ranking, None
    if sampler == "symmetric":
        assert ranking is not None, "the scenario was checked"
        users = np.arange(split.train.n_users)
        wanted = int(ranking.negatives)
        candidates = sampled_candidates(split, users, wanted, scenario.seed)
        if published is not None:
            candidates = np.concatenate([candidates, published.negatives], axis=1)
    return barred_items(sampler, split, candidates)


def _published(loaded: LoadedScenario) -> PublishedRatings | None:
    data = loaded.scenario.data
    if not isinstance(data, FileRatings) or not isinstance(data.split, PublishedSplit):
        return None
    from edge.data.published import read_published_ml_1m  # noqa: PLC0415

    path = loaded.resolve(("data", "path"))
    folder = path.parent if path.is_file() else path
    return read_published_ml_1m(folder, validation=data.split.validation)


def _split(loaded: LoadedScenario, store: RatingStore) -> Split:
    data, seed = loaded.scenario.data, loaded.scenario.seed
    assert not isinstance(data, SyntheticRegression)
    if data.split.kind in TIMED_SPLITS and not store.timed:
        path: Path = ("data", "split", "kind")
        message = f"{data.split.kind!r} goes by time, and this data has no timestamps"
        hint = "use data that has them (in a table, name their column in data.columns.time), or 'kind: ratio'"
        raise ScenarioError([DocumentError(loaded.document.position(path), path, message, hint)])
    match data.split:
        case RatioSplit() as how:
            return split_ratio(store, test=how.test, validation=how.validation, seed=seed)
        case UserTemporalSplit() as how:
            return split_user_temporal(store, test=how.test, validation=how.validation, seed=seed)
        case TemporalSplit() as how:
            try:
                return split_temporal(store, test=how.test, validation=how.validation)
            except ValueError as error:
                path = ("data", "split", "test")
                raise ScenarioError(
                    [DocumentError(loaded.document.position(path), path, str(error), "write less")]
                ) from None
        case LeaveOneOutSplit() as how:
            return split_leave_one_out(store, seed=seed, validation=how.validation)
        case UserSplit() as how:
            return split_users(store, unseen=how.unseen, validation=how.validation, test=how.test, seed=seed)
        case NoSplit():
            return split_none(store)
        case PublishedSplit():
            raise AssertionError("read with its ratings, never made from them")


def _clients(data: SyntheticRatingsSection | FileRatings, split: Split, seed: int) -> Clients:
    if data.clients is None and (data.users_per_client or 1) == 1:
        return one_user_per_client(split.seen_users)
    return group_users(
        split.train,
        split.seen_users,
        seed=seed,
        clients=data.clients,
        users_per_client=data.users_per_client,
        grouping=data.grouping,
        alpha=data.alpha if data.grouping == "dirichlet" else None,
    )


def _secure_sums(loaded: LoadedScenario, workload: Workload) -> dict[str, SecureSums | None]:
    """Return how updates are summed in each phase, by its name."""
    scenario = loaded.scenario
    made: dict[SecureAggregation, SecureSums | None] = {}
    for place, section in secure_sections(scenario):
        if section not in made:
            made[section] = _sums_of(section, place, loaded, workload)
    names = [phase.name for phase in scenario.phases] or [""]
    return {name: made[scenario.secure_in(name)] for name in names}


def _device_evaluation(
    loaded: LoadedScenario, workload: RatingWorkload | RemoteWorkload, evaluator: RatingEvaluator | None
) -> DeviceEvaluation:
    """Return how devices measure the model; without an ``evaluator`` they do it elsewhere."""
    scenario = loaded.scenario
    assert not isinstance(scenario.data, SyntheticRegression), "the scenario was checked"
    algorithm = workload.algorithm
    only_ranks = scenario.data.negatives is not None or algorithm.only_ranks(algorithm.settings)
    metrics = SummedMetrics(scenario.evaluation.ranking, only_ranks=only_ranks)
    rounds, privacy = scenario.evaluation_rounds, scenario.privacy
    if rounds.invited > workload.n_clients:
        path = ("evaluation", "cohort")
        message = f"{rounds.invited} devices would be invited, but the data has {workload.n_clients} clients"
        raise ScenarioError([DocumentError(loaded.document.position(path), path, message, "write less")])
    clip_norm = None if privacy is None else privacy.clip_norm
    from coordinator.engine.device_evaluation import DeviceEvaluation, EvaluationWorkload, SumsScale  # noqa: PLC0415

    scale = SumsScale(metrics, clip_norm, scenario.evaluation.error_max)
    return DeviceEvaluation(
        rounds,
        EvaluationWorkload(workload, scale, evaluator),
        _sums_of_reports(loaded, rounds, scale.metrics.width, workload.n_clients),
        isinstance(privacy, LocalGaussian | PersonalGaussian),
        scenario.evaluation,
        scale,
    )


def _mean_query(
    loaded: LoadedScenario, workload: RatingWorkload | RemoteWorkload, section: MeanQuerySection
) -> MeanQuery:
    """Return how devices are asked for the mean rating."""
    rounds, privacy = loaded.scenario.query_rounds, loaded.scenario.privacy
    if rounds.invited > workload.n_clients:
        path = ("data", "mean_query", "cohort")
        message = f"{rounds.invited} devices would be invited, but the data has {workload.n_clients} clients"
        raise ScenarioError([DocumentError(loaded.document.position(path), path, message, "write less")])
    scale = MeanScale(*section.range, None if privacy is None else privacy.clip_norm)
    return MeanQuery(
        rounds,
        MeanWorkload(workload, scale),
        _sums_of_reports(loaded, rounds, scale.width, workload.n_clients),
        isinstance(privacy, LocalGaussian),
        section,
        scale,
    )


def _sums_of_reports(
    loaded: LoadedScenario, rounds: Rounds, width: int, devices: int
) -> dict[str, SecureSums | None]:
    """Return how reports of so many numbers are summed in each phase, by its name; None: in the clear."""
    scenario = loaded.scenario
    made: dict[SecureAggregation, SecureSums | None] = {}
    for _, section in secure_sections(scenario):
        if isinstance(section, Masking):
            config = sums_config(scenario, section, rounds, SUMS, width)
            made[section] = _masked_sums(loaded, section, config, devices)
    names = [phase.name for phase in scenario.phases] or [""]
    return {name: made.get(scenario.secure_in(name)) for name in names}


def _shields(loaded: LoadedScenario, workload: Workload) -> dict[str, Shield | None]:
    """Return who reports in the clear beside a secure sum, by the name of the phase; None: devices know."""
    scenario = loaded.scenario
    made: dict[Shielded, Shield | None] = {}
    for place, section in secure_sections(scenario):
        if not isinstance(section, Masking) or section.shielded is None:
            continue
        if isinstance(workload, RemoteWorkload):
            made[section.shielded] = None
            continue
        assert isinstance(workload, RatingWorkload), "the scenario was checked"
        if np.ptp(workload.split.train.ratings) == 0:
            path = (*place, "shielded")
            message = "all ratings of the data are alike: there is nothing to judge a mask by"
            raise ScenarioError(
                [DocumentError(loaded.document.position(path), path, message, "leave it out")]
            )
        if section.shielded not in made:
            from coordinator.engine.shielding import Shield  # noqa: PLC0415

            made[section.shielded] = Shield(workload, section.shielded.build(), scenario.seed)
    found = {}
    for name in [phase.name for phase in scenario.phases] or [""]:
        section = scenario.secure_in(name)
        if isinstance(section, Masking) and section.shielded is not None:
            found[name] = made[section.shielded]
    return found


def _sums_of(
    section: SecureAggregation, place: Path, loaded: LoadedScenario, workload: Workload
) -> SecureSums | None:
    if isinstance(section, NoSecureAggregation):
        return None
    elsewhere = isinstance(workload, RemoteWorkload)
    most = 0 if elsewhere else int(workload.examples(np.arange(workload.n_clients)).max())
    if most > section.examples_max:
        path = (*place, "examples_max")
        message = f"a device holds {most} examples, more than the {section.examples_max} planned for"
        hint = f"write {most} or more, or limit data.max_ratings_per_user"
        raise ScenarioError([DocumentError(loaded.document.position(path), path, message, hint)])
    specs = workload.algorithm.summed_spec()
    if isinstance(section, Ckks):
        from coordinator.secure.sums.encrypted import EncryptedSums  # noqa: PLC0415
        from edge.homomorphic.schemes import ModelledScheme, TensealScheme  # noqa: PLC0415

        return EncryptedSums(
            ckks_config(loaded.scenario, section, lengths(specs)),
            section.stage_deadlines,
            TensealScheme() if section.crypto == "real" else ModelledScheme(),
        )
    config = masking_config(loaded.scenario, section, lengths(specs))
    quorum = loaded.scenario.rounds.quorum_reports if section.shielded is not None else 0
    return _masked_sums(loaded, section, config, workload.n_clients, quorum)


def _masked_sums(
    loaded: LoadedScenario, section: Masking, config: SecAggConfig, devices: int, quorum: int = 0
) -> SecureSums:
    """Return sums under masks by ``config``; ``quorum`` counts those that report in the clear, too."""
    from coordinator.secure.sums.masked import MaskedSums  # noqa: PLC0415
    from edge.secagg.cryptography import MODELLED, REAL  # noqa: PLC0415

    return MaskedSums(
        config,
        section.stage_deadlines,
        REAL if section.crypto == "real" else MODELLED,
        seed=loaded.scenario.seed,
        devices=devices,
        quorum=quorum,
    )


def _check_data_memory(loaded: LoadedScenario) -> None:
    """Refuse data to be made up that cannot be held."""
    data = loaded.scenario.data
    if isinstance(data, SyntheticRatingsSection):
        # Without a split, ratings of many are made when they are gathered.
        made_later = isinstance(data.split, NoSplit) and data.users * data.ratings_per_user > KEPT_RATINGS
        of_ratings = 0 if made_later else int(data.ratings_per_user) * _BYTES_OF_RATING
        needed = data.users * (_BYTES_OF_DEVICE + of_ratings)
        sizes = {"users": data.users, "ratings_per_user": data.ratings_per_user}
    elif isinstance(data, SyntheticRegression):
        needed = data.clients * (
            _BYTES_OF_DEVICE + data.samples_per_client * (data.features + 1) * _FLOAT64_BYTES
        )
        sizes = {name: getattr(data, name) for name in ("clients", "samples_per_client", "features")}
    else:
        return
    _require_memory(loaded, "data", sizes, "the data", needed)


def _check_model_memory(loaded: LoadedScenario, algorithm: Algorithm[Any], rows: int) -> None:
    """Refuse a model that cannot be held; ``rows`` are those of its largest array."""
    whole = algorithm.upload_spec(np.array([rows]))
    # In Python's numbers: numpy's would overflow. Drawn as float64, a model is there twice.
    values = sum(int(spec.rows[0]) * math.prod(spec.row_shape) for spec in whole)
    sizes: dict[str, float] = {}
    for name, value in loaded.scenario.learning:
        if isinstance(value, int | tuple):
            sizes[name] = max(value, default=0) if isinstance(value, tuple) else value
    _require_memory(loaded, "learning", sizes, "the model", 2 * values * _FLOAT64_BYTES)


def _require_memory(
    loaded: LoadedScenario, section: str, sizes: Mapping[str, float], what: str, needed: int
) -> None:
    """Refuse what needs more memory than there is, at the largest of the sizes that are written."""
    there = memory_bytes()
    if needed > there:
        path = (section, max(sizes, key=sizes.__getitem__))
        message = (
            f"{what} would take at least {format_bytes(needed)}, and this machine has {format_bytes(there)}"
        )
        hint = f"write less than {sizes[path[1]] * there / needed:.0f}"
        raise ScenarioError([DocumentError(loaded.document.position(path), path, message, hint)])


def _check_frames(loaded: LoadedScenario, assembly: Assembly) -> None:
    """Refuse a scenario whose model, or whose largest report, is above the limit of a frame."""
    limit = loaded.scenario.limits.frame_bytes
    workload, algorithm = assembly.workload, assembly.workload.algorithm
    arrays = {**algorithm.broadcast(algorithm.initial_state(0)), **algorithm.fixed()}
    model = sum(array.nbytes for array in arrays.values())
    examples = workload.examples(np.arange(workload.n_clients)).max(keepdims=True)
    report = sum(int(spec.nbytes()[0]) for spec in algorithm.upload_spec(examples))
    report = max([report, *(sums.input_bytes for sums in assembly.secure_sums.values() if sums is not None)])
    for what, size in (("model", model), ("largest report", report)):
        if size > limit:
            path = ("limits", "frame_bytes")
            message = f"the {what} has {format_bytes(size)}, more than a frame may have"
            hint = f"write at least {format_bytes(2 * size)}"
            raise ScenarioError([DocumentError(loaded.document.position(path), path, message, hint)])


def _refuse_timeless(loaded: LoadedScenario) -> NoReturn:
    """Refuse data without timestamps for a method that reads ratings in the order of time."""
    path = ("learning", "algorithm")
    message = (
        f"{method_name(loaded.scenario.learning)!r} reads ratings by time, and this data has no timestamps"
    )
    made_up = isinstance(loaded.scenario.data, SyntheticRatingsSection)
    hint = "write 'timestamps: true' in data" if made_up else "use data that has them, such as MovieLens"
    raise ScenarioError([DocumentError(loaded.document.position(path), path, message, hint)])


def _check_cohort(loaded: LoadedScenario, clients: int) -> None:
    rounds = loaded.scenario.rounds
    if rounds.invited <= clients:
        return
    key = "cohort" if rounds.cohort > clients else "over_select"
    path = ("rounds", key)
    message = f"{rounds.invited} devices would be invited, but the data has {clients} training clients"
    raise ScenarioError([DocumentError(loaded.document.position(path), path, message, "write less")])


def _check_public(loaded: LoadedScenario, public: PublicFacts, clients: int, items: int) -> None:
    """Refuse data that is not what the scenario says publicly of it."""
    for key, written, found in (("clients", public.clients, clients), ("items", public.items, items)):
        if written != found:
            path = ("data", "public", key)
            message = f"{written} is not what the data here has: {found}"
            hint = f"write {found}, or give the data that the scenario is about"
            raise ScenarioError([DocumentError(loaded.document.position(path), path, message, hint)])


def _exposure(loaded: LoadedScenario, train: RatingStore) -> Exposure | None:
    """Return the item whose exposure is measured; refuse one that the data does not have."""
    scenario = loaded.scenario
    section, name = scenario.exposure, scenario.promoted_item
    wanted = name if section is None else section.item
    if wanted is None:
        return None
    item = item_called(wanted, train, scenario.seed)
    if item is not None:
        return Exposure(item, ExposureSection().k if section is None else section.k)
    places = [
        ("faults", index, fault.key, "item")
        for index, fault in enumerate(scenario.faults)
        if fault.kind.promoted_item is not None
    ]
    path = places[0] if places else ("evaluation", "exposure", "item")
    message, hint = f"the data has no item {wanted!r}", "write one that it has, or 'cold'"
    raise ScenarioError([DocumentError(loaded.document.position(path), path, message, hint)])


def _check_audit(loaded: LoadedScenario, recommender: Recommender) -> None:
    """Refuse to read rated items off uploads that have no rows of items."""
    audit = loaded.scenario.audit
    names = {spec.name for spec in recommender.upload_spec(np.ones(1, np.int64))}
    if audit is not None and audit.rated_items and ROWS not in names:
        path = ("audit", "rated_items")
        message = f"{recommender.name()!r} uploads no rows of items that could be read; leave it out"
        raise ScenarioError([DocumentError(loaded.document.position(path), path, message, None)])


def _check_victims(loaded: LoadedScenario, clients: int) -> None:
    problems = [
        DocumentError(loaded.document.position(path), path, message, hint)
        for path, message, hint, _ in unknown_victims(loaded.scenario, clients)
    ]
    if problems:
        raise ScenarioError(problems)


def _check_inference(loaded: LoadedScenario, section: InferenceSection, clients: int) -> None:
    if section.devices > clients:
        path = ("inference", "devices")
        message = f"{section.devices} devices, but the data has {clients} training clients"
        position = loaded.document.position(path)
        raise ScenarioError([DocumentError(position, path, message, f"write {clients} or less")])


def _check_negatives(loaded: LoadedScenario, ratings: RatingStore) -> None:
    """Refuse more sampled negatives than the most active user has unrated items."""
    ranking = loaded.scenario.evaluation.ranking
    if ranking is None or ranking.negatives == "full":
        return
    unrated = ratings.n_items - int(ratings.counts.max())
    if int(ranking.negatives) <= unrated:
        return
    path = ("evaluation", "ranking", "negatives")
    message = f"{ranking.negatives} negatives asked for, but a user has {unrated} unrated items"
    hint = f"write at most {unrated}, or 'full'" if unrated else "write 'full'"
    raise ScenarioError([DocumentError(loaded.document.position(path), path, message, hint)])
