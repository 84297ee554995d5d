"""From a run directory to what :mod:`edge.serving` exports."""

from __future__ import annotations

import json
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from coordinator.catalogue import model_info
from coordinator.metrics.schemas import SCHEMA_VERSION
from coordinator.run_directory import ITEMS, MANIFEST, MODEL, RESOLVED_SCENARIO
from coordinator.scenario.load import load
from edge.learning import fedrecon_kernels as kernels
from edge.learning.base import State
from edge.learning.fedmmf import FedMMFSettings
from edge.learning.fedrecon import FedReconSettings
from edge.learning.local_steps import Ridge
from edge.serving.errors import ExportError
from edge.serving.metadata import ModelInfo
from edge.serving.personal_models import item_model
from edge.serving.recommender_graph import ItemModel, Mask, UserModel
from edge.serving.stateless_graph import stateless_model
from edge.serving.stateless_mask import MaskRule


@dataclass(frozen=True, slots=True, eq=False)
class TrainedModel:
    """The global model of a run of FedRecon or FedMMF, and how a device fits itself to it.

    Attributes
    ----------
    items : item factors, biases and mean.
    user_bias : whether users have a bias.
    ridge : how user factors are fitted.
    info : for the metadata of an export.
    masked : whether the model is that of what masks leave (FedMMF).
    devices : how many the run had.
    """

    items: ItemModel
    user_bias: bool
    ridge: Ridge
    info: ModelInfo
    masked: bool
    devices: int

    def stateless(self, top: int, mask: MaskRule | Mask | None = None) -> bytes:
        """Return the model file for a history; see :func:`edge.serving.stateless_graph.stateless_model`."""
        return stateless_model(
            self.items, self.ridge, self.info, user_bias=self.user_bias, top=top, mask=mask
        )

    def user(self, items: npt.NDArray[np.int64], ratings: npt.NDArray[np.float32]) -> UserModel:
        """Return what one device reconstructs from its ratings, for ``recommender_model``.

        Parameters
        ----------
        items : int64 [r], ascending indices.
        ratings : float32 [r].
        """
        model = self.items
        table = kernels.item_table(model.factors, model.bias, user_bias=self.user_bias, mean=model.mean)
        indptr = np.array([0, len(items)], np.int64)
        design = kernels.gather(table, kernels.Ratings(indptr, items, ratings), 0, 1)
        local = kernels.reconstruct(table, design, indptr, np.zeros(1, np.uint64), self.ridge)[0]
        return UserModel(local[: model.width], float(local[-1]) if self.user_bias else 0.0)


def read_trained(directory: Path) -> TrainedModel:
    """Read the model that a run of FedRecon or FedMMF has left in its directory.

    Raises
    ------
    ExportError
        For a directory without a file that is needed, another method, user factors that persist on
        devices, or a reconstruction by other means than ridge regression, which has no closed form to put
        into a graph.
    ScenarioError
        If the scenario in it is none that this version reads.
    """
    for name in (MANIFEST, RESOLVED_SCENARIO, MODEL, ITEMS):
        if not (directory / name).is_file():
            raise ExportError(
                f"{directory}: has no {name}; give the directory of a finished run over ratings, "
                "made by this version of recfleet"
            )
    manifest, catalogue = _json(directory / MANIFEST), _json(directory / ITEMS)
    if manifest["schema_version"] != SCHEMA_VERSION:
        raise ExportError(f"{directory}: was made by another version of recfleet; run the scenario again")
    scenario = load(directory / RESOLVED_SCENARIO, references=False).scenario
    settings = scenario.learning
    if not isinstance(settings, FedReconSettings | FedMMFSettings):
        raise ExportError(f"{directory}: was learnt by another method than fedrecon and fedmmf")
    if settings.user_factors == "persistent":
        raise ExportError(
            f"{directory}: learning.user_factors is 'persistent': user factors stay on the devices, and a run"
            " directory holds nothing of any device; an export needs 'reconstructed' ones"
        )
    ridge = settings.reconstruction
    if not isinstance(ridge, Ridge):
        raise ExportError(
            f"{directory}: learning.reconstruction.method is {ridge.method!r}; an export needs 'ridge'"
        )
    items = item_model(read_state(directory))
    return TrainedModel(
        items=items,
        user_bias=settings.user_bias,
        ridge=ridge,
        info=model_info(str(manifest["scenario"]), scenario, catalogue, items.n_items),
        masked=isinstance(settings, FedMMFSettings),
        devices=int(manifest["data"]["clients"]),
    )


def read_state(directory: Path) -> State:
    """Return the global parameters that a run has left.

    Raises ``ExportError`` for a file that cannot be read.
    """
    return _arrays(directory / MODEL)


def _json(path: Path) -> dict[str, Any]:
    try:
        contents: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ExportError(f"{path}: is no JSON: {error}; run the scenario again") from error
    return contents


def _arrays(path: Path) -> dict[str, npt.NDArray[Any]]:
    try:
        with np.load(path, allow_pickle=False) as file:
            return {name: file[name] for name in file.files}
    except (ValueError, zipfile.BadZipFile, EOFError) as error:
        raise ExportError(f"{path}: cannot be read: {error}; run the scenario again") from error
