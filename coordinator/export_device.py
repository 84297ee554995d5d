"""Exports that need more than the run directory: item features, and what a device has of its own ratings."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from coordinator.assembly import assemble
from coordinator.export import TrainedModel, read_state
from coordinator.features import item_features
from coordinator.run_directory import RESOLVED_SCENARIO
from coordinator.scenario.load import load
from coordinator.workload import RatingWorkload
from edge.data.features import ItemFeatures
from edge.learning.fedmmf import FedMMF
from edge.learning.fedrecon import FedRecon
from edge.masks.base import limited
from edge.masks.one_order import OneOrderSettings
from edge.masks.zero_order import ZeroOrderSettings
from edge.serving.errors import ExportError
from edge.serving.mask_graph import mask_model
from edge.serving.personal_models import personal_models, reads_features
from edge.serving.recommender_graph import Mask, UserModel, recommender_model
from edge.serving.stateless_mask import MaskRule, OneOrderRule, ZeroOrderRule


@dataclass(frozen=True, slots=True, eq=False)
class PersonalModel:
    """One device's model: the trained one, what the device reconstructs for it, and its mask, if any."""

    trained: TrainedModel
    user: UserModel
    mask: Mask | None

    def recommender(self, top: int) -> bytes:
        """Return the model file of the whole; see :mod:`edge.serving.recommender_graph`."""
        return recommender_model(self.trained.items, self.user, self.trained.info, mask=self.mask, top=top)

    def stateless(self, top: int) -> bytes:
        """Return the model file that takes the device's ratings as they come, and has its mask inside."""
        return self.trained.stateless(top, self.mask)

    def mask_alone(self) -> bytes:
        """Return the model file of the mask; see :func:`edge.serving.mask_graph.mask_model`.

        Raises ``ExportError`` for a device without a mask.
        """
        if self.mask is None:
            raise ExportError("a device has a mask in runs of fedmmf only; export another kind")
        return mask_model(self.mask.kind, self.mask.weights, self.trained.info, features=self.mask.features)


def check_device(trained: TrainedModel, device: int) -> None:
    """Raise ``ExportError`` unless the run had a device with this id."""
    if not 0 <= device < trained.devices:
        raise ExportError(f"there is no device {device}; this fleet has 0 to {trained.devices - 1}")


def stateless_of_anyone(directory: Path, trained: TrainedModel, overrides: Sequence[str], top: int) -> bytes:
    """Return a model file that fits mask and factors to any history.

    Parameters
    ----------
    directory, trained : of a run of FedMMF.
    overrides : settings from the command line, such as where the data is now.
    top : length of its list.

    Raises
    ------
    ExportError : for a mask without a closed form.
    ScenarioError, DataError : the data is not where the scenario says.
    """
    workload, features = _assembled(directory, overrides)
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
    return _featured(trained, features).stateless(top, rule)


def personal_model(
    directory: Path, trained: TrainedModel, device: int, overrides: Sequence[str]
) -> PersonalModel:
    """Reconstruct what a device has on its own ratings, with the model that its run has left.

    Parameters
    ----------
    directory, trained : of the run.
    device : its id.
    overrides : settings from the command line, such as where the ratings are now.

    Raises
    ------
    ExportError : for no device, or one of several users.
    ScenarioError, DataError : the ratings are not where the scenario says.
    """
    check_device(trained, device)
    workload, features = _assembled(directory, overrides)
    if workload.grouped:
        raise ExportError(f"device {device} holds several users; a personal model is for one")
    batch = workload.split.train.gather(workload.clients.users[[device]])
    algorithm = workload.algorithm
    assert isinstance(algorithm, FedRecon | FedMMF), "the method was checked"
    own = personal_models(algorithm, read_state(directory), batch, np.zeros(1, np.uint64))
    if reads_features(algorithm):
        trained = _featured(trained, features)
    return PersonalModel(trained, own.user(0), own.mask(0))


def _assembled(directory: Path, overrides: Sequence[str]) -> tuple[RatingWorkload, ItemFeatures | None]:
    loaded = load(directory / RESOLVED_SCENARIO, overrides)
    workload = assemble(loaded).workload
    assert isinstance(workload, RatingWorkload), "fedrecon and fedmmf learn from ratings"
    return workload, item_features(loaded, workload.split.train)


def _featured(trained: TrainedModel, features: ItemFeatures | None) -> TrainedModel:
    """Return the model with the names of the features in its information."""
    assert features is not None, "the scenario was checked"
    return dataclasses.replace(trained, info=dataclasses.replace(trained.info, feature_names=features.names))
