"""From a scenario to what a run works with: data, method, fleet."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from typing import Any, Final, NoReturn, cast

import numpy as np

from coordinator.engine.aggregation.ranges import ReportRanges
from coordinator.engine.assembly import Assembly
from coordinator.engine.evaluation import RatingEvaluator, RegressionEvaluator
from coordinator.engine.host import memory_bytes
from coordinator.engine.inference import DeviceInference
from coordinator.engine.privacy import RunPrivacy
from coordinator.engine.secure_sums import SecureSums, lengths
from coordinator.engine.shielding import Shield
from coordinator.engine.workload import (
    DrawnItems,
    RatingWorkload,
    RegressionWorkload,
    Workload,
    rating_problem,
)
from coordinator.results.export import catalogue_facts, model_info
from coordinator.scenario.data_section import (
    FileRatings,
    LeaveOneOutSplit,
    NoSplit,
    PublishedSplit,
    RatioSplit,
    SyntheticRatingsSection,
    SyntheticRegression,
    UserSplit,
)
from coordinator.scenario.errors import ScenarioError
from coordinator.scenario.load import LoadedScenario
from coordinator.scenario.protection import ckks_config, masking_config, secure_sections
from coordinator.scenario.ratings import file_facts, item_features, read_data
from coordinator.scenario.registered_sections import method_name
from coordinator.scenario.rounds_section import InferenceSection
from coordinator.scenario.schema import unknown_victims
from coordinator.scenario.secure_section import (
    Ckks,
    Masking,
    NoSecureAggregation,
    SecureAggregation,
    Shielded,
)
from coordinator.secure.sums.encrypted import EncryptedSums
from coordinator.secure.sums.masked import MaskedSums
from coordinator.simulation.fleet_assembly import build_fleet
from device_profiles.errors import DocumentError, Path
from device_profiles.units import format_bytes
from edge.data.clients import Clients, group_users, one_user_per_client
from edge.data.published import PublishedRatings, read_published_ml_1m
from edge.data.readers.titles import read_item_titles
from edge.data.regression import generate_regression
from edge.data.split import (
    Split,
    split_leave_one_out,
    split_none,
    split_ratio,
    split_users,
)
from edge.data.store import RatingStore
from edge.data.table.reading import RatingsFile
from edge.homomorphic.schemes import ModelledScheme, TensealScheme
from edge.learning.base import Algorithm, Problem, Recommender
from edge.learning.registry import METHODS, create
from edge.secagg.cryptography import MODELLED, REAL

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
    workload = assembly.workload
    assembly.secure_sums = _secure_sums(loaded, workload)
    assembly.shields = _shields(loaded, workload)
    assembly.ranges = ReportRanges.of(loaded.scenario, workload)
    if loaded.scenario.privacy is not None:
        activity = workload.held(np.arange(workload.n_clients))
        elements = sum(length for _, length in lengths(workload.algorithm.summed_spec()))
        assembly.privacy = RunPrivacy(loaded.scenario, assembly.secure_sums, activity, elements)
    _check_frames(loaded, assembly)
    assembly.wall_s = time.perf_counter() - start_s
    return assembly


def _assemble(loaded: LoadedScenario) -> Assembly:
    scenario = loaded.scenario
    seed = scenario.seed
    _check_data_memory(loaded)
    if isinstance(scenario.data, SyntheticRegression):
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
    drawn = DrawnItems(scenario.data.negatives, scenario.data.held_out_negatives == "spared")
    problem = rating_problem(split, None if features is None else features.values, drawn)
    recommender = cast(Recommender, create(scenario.learning, problem))
    _check_model_memory(loaded, recommender, ratings.n_items)
    timed = METHODS[method_name(scenario.learning)].timed
    if timed and split.train.timestamps is None:
        _refuse_timeless(loaded)
    workload = RatingWorkload(recommender, split, clients, seed, timed=timed, drawn=drawn)
    fleet = build_fleet(loaded, clients.n_clients)
    negatives = None
    if published is not None and scenario.evaluation.on == "test":
        negatives = published.negatives
    evaluator = RatingEvaluator(workload, fleet, scenario.evaluation, seed, negatives)
    catalogue = catalogue_facts(ratings, None if read is None else read_item_titles(read))
    inference: DeviceInference | None = None
    if scenario.inference is not None:
        _check_inference(loaded, scenario.inference, clients.n_clients)
        names = () if features is None else features.names
        # Not the name of the file: the size of a model must follow from the scenario.
        info = model_info(loaded.hash[:8], scenario, catalogue, ratings.n_items, names)
        inference = DeviceInference(scenario.inference, workload, fleet, info, seed)
    return Assembly(workload, fleet, evaluator, facts, catalogue=catalogue, inference=inference)


def _published(loaded: LoadedScenario) -> PublishedRatings | None:
    data = loaded.scenario.data
    if not isinstance(data, FileRatings) or not isinstance(data.split, PublishedSplit):
        return None
    path = loaded.resolve(("data", "path"))
    folder = path.parent if path.is_file() else path
    return read_published_ml_1m(folder, validation=data.split.validation)


def _split(loaded: LoadedScenario, store: RatingStore) -> Split:
    data, seed = loaded.scenario.data, loaded.scenario.seed
    assert not isinstance(data, SyntheticRegression)
    match data.split:
        case RatioSplit() as how:
            return split_ratio(store, test=how.test, validation=how.validation, seed=seed)
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


def _shields(loaded: LoadedScenario, workload: Workload) -> dict[str, Shield]:
    """Return who reports in the clear beside a secure sum, by the name of the phase."""
    scenario = loaded.scenario
    made: dict[Shielded, Shield] = {}
    for place, section in secure_sections(scenario):
        if not isinstance(section, Masking) or section.shielded is None:
            continue
        assert isinstance(workload, RatingWorkload), "the scenario was checked"
        if np.ptp(workload.split.train.ratings) == 0:
            path = (*place, "shielded")
            message = "all ratings of the data are alike: there is nothing to judge a mask by"
            raise ScenarioError(
                [DocumentError(loaded.document.position(path), path, message, "leave it out")]
            )
        if section.shielded not in made:
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
    most = int(workload.examples(np.arange(workload.n_clients)).max())
    if most > section.examples_max:
        path = (*place, "examples_max")
        message = f"a device holds {most} examples, more than the {section.examples_max} planned for"
        hint = f"write {most} or more, or limit data.max_ratings_per_user"
        raise ScenarioError([DocumentError(loaded.document.position(path), path, message, hint)])
    specs = workload.algorithm.summed_spec()
    if isinstance(section, Ckks):
        return EncryptedSums(
            ckks_config(loaded.scenario, section, lengths(specs)),
            section.stage_deadlines,
            TensealScheme() if section.crypto == "real" else ModelledScheme(),
        )
    return MaskedSums(
        masking_config(loaded.scenario, section, lengths(specs)),
        section.stage_deadlines,
        REAL if section.crypto == "real" else MODELLED,
        seed=loaded.scenario.seed,
        devices=workload.n_clients,
        quorum=loaded.scenario.rounds.quorum_reports if section.shielded is not None else 0,
    )


def _check_data_memory(loaded: LoadedScenario) -> None:
    """Refuse data to be made up that cannot be held."""
    data = loaded.scenario.data
    if isinstance(data, SyntheticRatingsSection):
        needed = data.users * (_BYTES_OF_DEVICE + int(data.ratings_per_user) * _BYTES_OF_RATING)
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
