"""From a run directory to what :mod:`edge.onnx` exports, and what a run keeps beside its model for that."""

from __future__ import annotations

import zipfile
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Final

import numpy as np
import numpy.typing as npt
from pydantic import BaseModel, Field

from coordinator.engine.run_files import ITEMS, MANIFEST, MODEL, RESOLVED_SCENARIO
from coordinator.results.tables.reader import JsonShape, read_json
from coordinator.results.tables.schemas import OLDEST_VERSION, SCHEMA_VERSION
from coordinator.scenario.data_section import SyntheticRegression
from coordinator.scenario.load import load
from coordinator.scenario.registered_sections import method_name
from coordinator.scenario.schema import ScenarioSettings
from edge.core.errors import ExportError
from edge.learning.base import State
from edge.learning.method_settings import Ridge
from edge.learning.methods.fedavg_mf import SharedFactorizationSettings
from edge.learning.methods.fedmf import FactorizationSettings
from edge.learning.methods.fedrecgel import FedRecGELSettings
from edge.learning.methods.fedrecon.algorithm import FACTORS
from edge.learning.methods.fedrecon.settings import ReconstructionSettings
from edge.learning.registry import METHODS
from edge.onnx.metadata import ModelInfo
from edge.onnx.own_masks import Mask
from edge.onnx.personal_models import item_model
from edge.onnx.score_graphs import ItemModel
from edge.onnx.stateless_graph import MaskRule, stateless_model

_KEPT: Final = ("user_factors", "user_embeddings", "personal_parameters")
"""Settings that say whether devices keep rows of their own."""


def model_info(
    name: str,
    scenario: ScenarioSettings,
    catalogue: Mapping[str, Any],
    n_items: int,
    feature_names: Sequence[str] = (),
) -> ModelInfo:
    """Return what the model files of a run say about themselves.

    Parameters
    ----------
    name : what to call the scenario.
    scenario : of the run.
    catalogue : the contents of ``items.json``.
    n_items : of the model.
    feature_names : of what masks read.
    """
    labels, limits, titles = (catalogue[entry] for entry in ("labels", "rating_range", "titles"))
    return ModelInfo(
        scenario=name,
        seed=scenario.seed,
        privacy=_mechanism(scenario),
        n_items=n_items,
        feature_names=tuple(feature_names),
        item_labels=None if labels is None else tuple(labels),
        rating_range=None if limits is None else (limits[0], limits[1]),
        titles=None if titles is None else tuple(titles),
    )


def _mechanism(scenario: ScenarioSettings) -> str:
    """Return what hides a user in the model, or the values of ratings."""
    if scenario.privacy is not None:
        return scenario.privacy.mechanism
    name = method_name(scenario.learning)
    return name if METHODS[name].hides_values else "none"


class _RatingCounts(JsonShape):
    clients: int
    items: int


class _OfModel(JsonShape):
    """What an export reads of a manifest."""

    schema_version: int
    scenario: str


class _OfRatings(_OfModel):
    """What it reads of one whose method ranks items."""

    data: _RatingCounts


class _Items(JsonShape):
    """What is read of ``items.json``."""

    labels: list[int | str] | None
    rating_range: Annotated[list[float], Field(min_length=2, max_length=2)] | None
    titles: list[str] | None


@dataclass(frozen=True, slots=True, eq=False)
class FinishedRun:
    """What a run of a recommender has left.

    Attributes
    ----------
    directory : of the run.
    learning : settings of its method.
    state : the global parameters.
    info : for the metadata of an export.
    devices : how many the run had.
    draws_zeros : whether its devices learnt ones and zeros that they drew.
    """

    directory: Path
    learning: BaseModel
    state: State
    info: ModelInfo
    devices: int
    draws_zeros: bool

    @property
    def masked(self) -> bool:
        """Whether the model is that of what masks leave (FedMMF)."""
        return METHODS[method_name(self.learning)].has_masks

    def check_device(self, device: int) -> None:
        """Raise ``ExportError`` unless the run had a device with this id."""
        if not 0 <= device < self.devices:
            raise ExportError(f"there is no device {device}; this fleet has 0 to {self.devices - 1}")

    def check_rows(self) -> None:
        """Raise ``ExportError`` if devices kept rows of their own, of which the directory holds none."""
        learning, where = self.learning, "learning"
        if isinstance(learning, FedRecGELSettings):
            learning, where = learning.base, "learning.base"
        for name in _KEPT:
            if getattr(learning, name, None) == "persistent":
                other = (
                    ""
                    if isinstance(learning, FactorizationSettings)
                    else f"; or write '{name}: reconstructed'"
                )
                raise ExportError(
                    f"{self.directory}: {where}.{name} is 'persistent': they stay on the devices, and a run"
                    " directory holds nothing of any device. A section 'inference' lets devices run their"
                    f" models in the run, where they are{other}"
                )


@dataclass(frozen=True, slots=True, eq=False)
class TrainedModel:
    """The global factorisation of a run, and how a device fits itself to it by ridge regression.

    Attributes
    ----------
    items : item factors, biases and mean.
    user_bias : whether users have a bias.
    ridge : how user factors are fitted.
    info : for the metadata of an export.
    """

    items: ItemModel
    user_bias: bool
    ridge: Ridge
    info: ModelInfo

    def stateless(self, top: int, mask: MaskRule | Mask | None = None) -> bytes:
        """Return the model file for a history; see :func:`edge.onnx.stateless_graph.stateless_model`."""
        return stateless_model(
            self.items, self.ridge, self.info, user_bias=self.user_bias, top=top, mask=mask
        )


def read_finished(directory: Path) -> FinishedRun:
    """Read what a run of a recommender has left in its directory.

    Raises
    ------
    ExportError
        For a directory without a file that is needed, or of a method that ranks no items.
    ScenarioError
        If the scenario in it is none that this version reads.
    """
    _check_files(directory, MANIFEST, RESOLVED_SCENARIO)
    manifest = read_json(directory / MANIFEST, _OfModel)
    if not OLDEST_VERSION <= manifest["schema_version"] <= SCHEMA_VERSION:
        raise ExportError(f"{directory}: was made by another version of recfleet; run the scenario again")
    scenario = load(directory / RESOLVED_SCENARIO, references=False).scenario
    method = method_name(scenario.learning)
    if METHODS[method].data != "ratings":
        known = ", ".join(name for name, entry in METHODS.items() if entry.data == "ratings")
        raise ExportError(
            f"{directory}: learning.algorithm is {method!r}, which ranks no items; exported are {known}"
        )
    _check_files(directory, MODEL, ITEMS)
    catalogue = read_json(directory / ITEMS, _Items)
    data = read_json(directory / MANIFEST, _OfRatings)["data"]
    try:
        info = model_info(manifest["scenario"], scenario, catalogue, data["items"])
    except ExportError as error:
        raise ExportError(f"{directory / ITEMS}: does not fit the run: {error}") from error
    return FinishedRun(
        directory=directory,
        learning=scenario.learning,
        state=read_model(directory / MODEL),
        info=info,
        devices=data["clients"],
        draws_zeros=not isinstance(scenario.data, SyntheticRegression)
        and scenario.data.negatives is not None,
    )


def trained_model(run: FinishedRun) -> TrainedModel:
    """Return the factorisation of a run as anyone can fit it to a history of ratings.

    Raises
    ------
    ExportError
        For a model that is no factorisation, user factors that are kept or shared, fitted by other means than
        ridge regression, which has no closed form to put into a graph, or fitted to zeros beside a history.
    """
    run.check_rows()
    settings, where, within = run.learning, run.directory, "learning"
    if isinstance(settings, FedRecGELSettings):
        settings, within = settings.base, "learning.base"
    method = method_name(run.learning)
    device = "; name a device: --kind recommender --device"
    if run.draws_zeros:
        raise ExportError(
            f"{where}: with data.negatives a device draws zeros beside its history, and a graph draws nothing"
            f"{device}"
        )
    if FACTORS not in run.state:
        raise ExportError(f"{where}: {method} has no factors that a history could be fitted to{device}")
    if isinstance(settings, SharedFactorizationSettings):
        key, fitted = "fine_tuning", settings.fine_tuning
        if fitted is None:
            raise ExportError(
                f"{where}: {method} learns a row of each user, and fits none to a history{device}"
            )
    elif not isinstance(settings, ReconstructionSettings):
        raise ExportError(f"{where}: {method} fits users by a loss of its own, not to ratings{device}")
    else:
        key, fitted = "reconstruction", settings.reconstruction
        if getattr(settings, "fine_tuning", None) is not None:
            raise ExportError(
                f"{where}: {method} tunes the items to a history, which has no closed form{device}"
            )
    if not isinstance(fitted, Ridge):
        raise ExportError(
            f"{where}: {within}.{key}.method is {fitted.method!r}; a stateless export needs 'ridge'{device}"
        )
    return TrainedModel(item_model(run.state), settings.user_bias, fitted, run.info)


def _check_files(directory: Path, *names: str) -> None:
    for name in names:
        if not (directory / name).is_file():
            raise ExportError(
                f"{directory}: has no {name}; give the directory of a finished run over ratings, "
                "made by this version of recfleet"
            )


_UNREADABLE: Final = (
    *(OSError, EOFError, ValueError, KeyError, MemoryError, RuntimeError, NotImplementedError),
    *(zipfile.BadZipFile, zlib.error),
)
"""What numpy and zipfile raise of an archive that is damaged: lengths and flags in it may say anything."""


def read_model(path: Path) -> dict[str, npt.NDArray[Any]]:
    """Return the parameters in the model file of a run, by name.

    Raises
    ------
    ExportError : it cannot be read.
    """
    try:
        with path.open("rb") as opened, np.load(opened, allow_pickle=False) as file:
            return {name: file[name] for name in file.files}
    except _UNREADABLE as error:
        raise ExportError(f"{path}: cannot be read: {error}; run the scenario again") from error
