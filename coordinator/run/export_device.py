"""Exports that need more than the run directory: item features, and what a device has of its own ratings."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from coordinator.engine.assembly import Assembly
from coordinator.engine.run_files import MODEL, RESOLVED_SCENARIO
from coordinator.engine.workload import RatingWorkload
from coordinator.results.export import FinishedRun, trained_model
from coordinator.results.tables.reader import read_manifest
from coordinator.run.assembling import assemble
from coordinator.scenario.load import LoadedScenario, load_text
from coordinator.scenario.ratings import item_features
from edge.core.errors import ExportError
from edge.data.features import ItemFeatures
from edge.learning.base import State
from edge.learning.masks.base import limited
from edge.learning.masks.one_order import OneOrderSettings
from edge.learning.masks.zero_order import ZeroOrderSettings
from edge.learning.methods.fedmmf import FedMMF
from edge.onnx.mask_graph import mask_model
from edge.onnx.own_masks import Mask
from edge.onnx.personal_models import personal_models
from edge.onnx.recommenders import Recommenders, info_for, recommender_model
from edge.onnx.score_graphs import Factorizations
from edge.onnx.stateless_graph import MaskRule, OneOrderRule, ZeroOrderRule


@dataclass(frozen=True, slots=True, eq=False)
class PersonalModel:
    """One device's model, as its run's method personalises it on the device's own ratings."""

    run: FinishedRun
    models: Recommenders

    def recommender(self, top: int) -> bytes:
        """Return the model file of the whole; see :mod:`edge.onnx.recommenders`."""
        return recommender_model(self.models, self.run.info, top=top)

    def stateless(self, top: int) -> bytes:
        """Return the model file that takes the device's ratings as they come, and has its mask inside."""
        return trained_model(self.run).stateless(top, self._mask())

    def mask_alone(self) -> bytes:
        """Return the model file of the mask; see :func:`edge.onnx.mask_graph.mask_model`.

        Raises ``ExportError`` for a device without a mask.
        """
        mask = self._mask()
        return mask_model(
            mask.kind, mask.weights, info_for(mask.features, self.run.info), features=mask.features
        )

    def _mask(self) -> Mask:
        if not isinstance(self.models, Factorizations) or self.models.masks is None:
            raise ExportError("a device has a mask in runs of fedmmf only; export another kind")
        return self.models.masks.one(0)


def stateless_of_anyone(run: FinishedRun, overrides: Sequence[str], top: int) -> bytes:
    """Return a model file that fits mask and factors to any history.

    Parameters
    ----------
    run : of FedMMF.
    overrides : settings from the command line, such as where the data is now.
    top : length of its list.

    Raises
    ------
    ExportError : for a mask without a closed form.
    ScenarioError, DataError : the data is not where the scenario says.
    """
    trained_model(run)  # what cannot be exported is said before the data is read
    workload, features = _of_ratings(run, overrides)
    fedmmf = workload.algorithm
    assert isinstance(fedmmf, FedMMF), "such is the model"
    settings = fedmmf.mask.settings
    rule: MaskRule
    if isinstance(settings, ZeroOrderSettings):
        rule = ZeroOrderRule(fedmmf.mean, settings.shrinkage)
    elif isinstance(settings, OneOrderSettings):
        rule = OneOrderRule(
            fedmmf.mean,
            limited(fedmmf.features, settings.feature_limit),
            settings.regularization,
            settings.intercept_regularization,
        )
    else:
        kind = settings.kind  # type: ignore[attr-defined]  # every kind of mask says which it is
        raise ExportError(
            f"a {kind} mask has no closed form that a graph could follow; "
            "name a device with --device, and its own mask goes into the file"
        )
    return trained_model(_featured(run, features)).stateless(top, rule)


def personal_model(run: FinishedRun, device: int, overrides: Sequence[str]) -> PersonalModel:
    """Make a device's model of its own ratings, and the model that its run has left.

    Whatever the method draws at random follows from the key 0.

    Parameters
    ----------
    run : what it has left.
    device : its id.
    overrides : settings from the command line, such as where the ratings are now.

    Raises
    ------
    ExportError : for no device, one of several users, or one that keeps a row of its own; a model that is not
        of these ratings.
    ScenarioError, DataError : the ratings are not where the scenario says.
    """
    run.check_device(device)
    run.check_rows()
    workload, features = _of_ratings(run, overrides)
    if workload.grouped:
        raise ExportError(f"device {device} holds several users; a personal model is for one")
    users = workload.clients.users[[device]]
    batch = workload.gather(workload.split.train, users, np.zeros(1, np.uint64))
    rows = workload.rows_of(users, run.state)
    models = personal_models(workload.algorithm, run.state, batch, np.zeros(1, np.uint64), rows)
    return PersonalModel(_featured(run, features), models)


def assembled_again(run: FinishedRun, overrides: Sequence[str]) -> tuple[LoadedScenario, Assembly]:
    """Assemble data, method and fleet of a finished run.

    Relative names in its scenario start at the current folder, as the folder of the original is not known.
    ``overrides`` are settings from the command line, such as where the ratings are now.

    Raises
    ------
    ExportError : the model is not of these ratings, or they are not those of the run.
    ScenarioError, DataError : the ratings are not where the scenario says.
    """
    resolved = run.directory / RESOLVED_SCENARIO
    loaded = load_text(resolved.read_text(encoding="utf-8"), str(resolved), overrides=overrides)
    assembly = assemble(loaded)
    _check_state(run, assembly.workload.algorithm.initial_state(0))
    then = read_manifest(run.directory)["data"].get("split_hash")
    if then != assembly.data_facts["split_hash"]:
        raise ExportError(
            f"{run.directory}: these ratings, or their split, are not those of the run; say where those are "
            "with --set data.path=…, or run the scenario again"
        )
    return loaded, assembly


def _of_ratings(run: FinishedRun, overrides: Sequence[str]) -> tuple[RatingWorkload, ItemFeatures | None]:
    loaded, assembly = assembled_again(run, overrides)
    workload = assembly.workload
    assert isinstance(workload, RatingWorkload), "recommenders learn from ratings"
    return workload, item_features(loaded, workload.split.train)


def _check_state(run: FinishedRun, expected: State) -> None:
    """Raise ``ExportError`` unless the run's parameters are such as its method has on these ratings."""
    for name in sorted({*expected, *run.state}):
        there, wanted = (
            f"{state[name].dtype} {list(state[name].shape)}" if name in state else "missing"
            for state in (run.state, expected)
        )
        if there != wanted:
            raise ExportError(
                f"{run.directory / MODEL}: {name} is {there}, for these ratings it would be {wanted};"
                " say where those of the run are with --set data.path=…, or run the scenario again"
            )


def _featured(run: FinishedRun, features: ItemFeatures | None) -> FinishedRun:
    """Return the run with the names of the features of its items, if they have any."""
    if features is None:
        return run
    return dataclasses.replace(run, info=dataclasses.replace(run.info, feature_names=features.names))
