"""What one device of a finished run would serve from: its own factors and its own mask, for an export."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from coordinator.assembly import assemble
from coordinator.export import TrainedModel, read_state, read_trained
from coordinator.features import item_features
from coordinator.run_directory import RESOLVED_SCENARIO
from coordinator.scenario.load import load
from coordinator.workload import RatingWorkload
from edge.learning.fedmmf import FedMMF
from edge.learning.fedrecon import FedRecon
from edge.serving.errors import ExportError
from edge.serving.mask_graph import mask_model
from edge.serving.personal_models import personal_models, reads_features
from edge.serving.recommender_graph import Mask, UserModel, recommender_model


@dataclass(frozen=True, slots=True, eq=False)
class PersonalModel:
    """One device's model: the trained one, what the device reconstructs for it, and its mask, if any."""

    trained: TrainedModel
    user: UserModel
    mask: Mask | None

    def recommender(self, top: int) -> bytes:
        """Return the model file of the whole; see :mod:`edge.serving.recommender_graph`."""
        return recommender_model(self.trained.items, self.user, self.trained.info, mask=self.mask, top=top)

    def mask_alone(self) -> bytes:
        """Return the model file of the mask; see :func:`edge.serving.mask_graph.mask_model`.

        Raises ``ExportError`` for a device without a mask.
        """
        if self.mask is None:
            raise ExportError("a device has a mask in runs of fedmmf only; export another kind")
        return mask_model(self.mask.kind, self.mask.weights, self.trained.info, features=self.mask.features)


def read_personal(directory: Path, device: int, overrides: Sequence[str]) -> PersonalModel:
    """Reconstruct what a device has on its own ratings, with the model that its run has left.

    Parameters
    ----------
    directory : of the run, of ``fedrecon`` or ``fedmmf``.
    device : its id.
    overrides : settings from the command line, such as where the ratings are now.

    Raises
    ------
    ExportError : as :func:`coordinator.export.read_trained`; for no device, or one of several users.
    ScenarioError, DataError : the ratings are not where the scenario says.
    """
    trained = read_trained(directory, masked=True)
    loaded = load(directory / RESOLVED_SCENARIO, overrides)
    workload = assemble(loaded).workload
    assert isinstance(workload, RatingWorkload), "fedrecon and fedmmf learn from ratings"
    if not 0 <= device < workload.n_clients:
        raise ExportError(f"there is no device {device}; this fleet has 0 to {workload.n_clients - 1}")
    if workload.grouped:
        raise ExportError(f"device {device} holds several users; a personal model is for one")
    batch = workload.split.train.gather(workload.clients.users[[device]])
    algorithm = workload.algorithm
    assert isinstance(algorithm, FedRecon | FedMMF), "the method was checked"
    own = personal_models(algorithm, read_state(directory), batch, np.zeros(1, np.uint64))
    if reads_features(algorithm):
        features = item_features(loaded, workload.split.train)
        assert features is not None, "the scenario was checked"
        trained = dataclasses.replace(
            trained, info=dataclasses.replace(trained.info, feature_names=features.names)
        )
    return PersonalModel(trained, own.user(0), own.mask(0))
