"""The methods by name: their settings, and how to make them.

A scenario's ``learning`` section is one of the settings models, told apart by ``algorithm``. To add a method
is to add a line here; see docs/adding-an-algorithm.md.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, NamedTuple

from pydantic import BaseModel

from edge.learning.base import Algorithm, Problem
from edge.learning.blur import BLUR, BLURSettings
from edge.learning.fedavg_mf import FedAvgMF, FedAvgMFSettings
from edge.learning.federated_context import FederatedContext, FederatedContextSettings
from edge.learning.fedmf import FedMF, FedMFSettings
from edge.learning.fedmmf import FedMMF, FedMMFSettings
from edge.learning.fedncf import FedNCF
from edge.learning.fedncf_settings import FedNCFSettings
from edge.learning.fedrec import FedRec, FedRecSettings
from edge.learning.fedrecgel import FedRecGELSettings, fedrecgel
from edge.learning.fedrecon import FedRecon
from edge.learning.fedrecon_settings import FedReconSettings
from edge.learning.linear_regression import LinearRegression, LinearRegressionSettings
from edge.learning.lipm import LIPM, LIPMSettings
from edge.learning.local_context import LocalContext, LocalContextSettings
from edge.learning.local_steps import Gradient
from edge.learning.pfedme import PFedMe, PFedMeSettings


def _always(settings: Any) -> bool:
    return True


def _never(settings: Any) -> bool:
    return False


def _weighs_alike(settings: Any) -> bool:
    return bool(settings.weighting == "uniform")


def _none_added(settings: Any) -> float:
    return 0.0


def _uploads_all(settings: Any) -> bool:
    return bool(settings.upload == "dense")


class Method(NamedTuple):
    """A method: its settings model, what makes it, called with settings and problem, and what it learns from.

    ``uniform`` says of settings whether every update weighs 1; otherwise it weighs a number of examples.
    ``dense`` says whether an update has the same arrays whatever data made it, so that it can be summed
    securely. ``stepwise`` says whether an update is made of local steps, of which a device can take a part.
    ``only_ranks`` says whether its predictions are no ratings, so that only rankings can be measured.
    ``features`` says whether it learns from the features of the items.
    ``timed`` says whether it reads a user's ratings in the order of time, so that they need timestamps.
    ``uploads`` says whether an update holds anything but counts and the loss.
    ``signed_loss`` says whether its training loss may be negative.
    ``added_examples`` is how many examples an update may have beside each that its client holds.
    """

    settings: type[BaseModel]
    algorithm: Callable[[Any, Problem], Algorithm[Any]]
    data: Literal["ratings", "regression"]
    uniform: Callable[[Any], bool]
    dense: Callable[[Any], bool]
    stepwise: Callable[[Any], bool]
    only_ranks: Callable[[Any], bool] = _never
    features: bool = False
    timed: bool = False
    uploads: bool = True
    signed_loss: bool = False
    added_examples: Callable[[Any], float] = _none_added


METHODS: dict[str, Method] = {
    "fedrecon": Method(
        FedReconSettings,
        FedRecon,
        "ratings",
        uniform=_weighs_alike,
        dense=_uploads_all,
        stepwise=_always,
    ),
    "fedmmf": Method(
        FedMMFSettings,
        FedMMF,
        "ratings",
        uniform=_weighs_alike,
        dense=_uploads_all,
        stepwise=_always,
        features=True,
    ),
    "federated-context": Method(
        FederatedContextSettings,
        FederatedContext,
        "ratings",
        uniform=_weighs_alike,
        dense=_always,
        stepwise=_always,
        features=True,
    ),
    "local-context": Method(
        LocalContextSettings,
        LocalContext,
        "ratings",
        uniform=_always,
        dense=_always,
        stepwise=_never,
        features=True,
        uploads=False,
    ),
    "fedncf": Method(
        FedNCFSettings,
        FedNCF,
        "ratings",
        uniform=_weighs_alike,
        dense=_uploads_all,
        stepwise=_always,
        only_ranks=_always,
    ),
    "fedrecgel": Method(
        FedRecGELSettings,
        fedrecgel,
        "ratings",
        uniform=lambda settings: settings.base.weighting == "uniform",
        dense=lambda settings: settings.base.upload == "dense",
        stepwise=_always,
        only_ranks=lambda settings: isinstance(settings.base, FedNCFSettings),
    ),
    "fedmf": Method(
        FedMFSettings,
        FedMF,
        "ratings",
        uniform=_weighs_alike,
        dense=_uploads_all,
        stepwise=_always,
    ),
    "fedavg-mf": Method(
        FedAvgMFSettings,
        FedAvgMF,
        "ratings",
        uniform=_never,
        dense=_never,
        stepwise=_always,
    ),
    "fedrec": Method(
        FedRecSettings,
        FedRec,
        "ratings",
        uniform=_weighs_alike,
        dense=_uploads_all,
        stepwise=_always,
        added_examples=lambda settings: float(settings.virtual_share),
    ),
    "pfedme": Method(
        PFedMeSettings,
        PFedMe,
        "ratings",
        uniform=_never,
        dense=_never,
        stepwise=_always,
    ),
    "blur": Method(
        BLURSettings,
        BLUR,
        "ratings",
        uniform=_weighs_alike,
        dense=_uploads_all,
        stepwise=_always,
    ),
    "lipm": Method(
        LIPMSettings,
        LIPM,
        "ratings",
        uniform=_weighs_alike,
        dense=_always,
        stepwise=_always,
        timed=True,
    ),
    "linear-regression": Method(
        LinearRegressionSettings,
        LinearRegression,
        "regression",
        uniform=_never,
        dense=_always,
        stepwise=lambda settings: not isinstance(settings.local, Gradient),
    ),
}
"""Every method by the name that ``learning.algorithm`` gives it."""


def create(settings: BaseModel, problem: Problem) -> Algorithm[Any]:
    """Make the method that ``settings`` belong to.

    Raises
    ------
    ValueError : ``settings`` belong to no registered method, or the problem lacks what the method needs.
    """
    for method in METHODS.values():
        if type(settings) is method.settings:
            algorithm: Algorithm[Any] = method.algorithm(settings, problem)
            return algorithm
    known = ", ".join(sorted(METHODS))
    raise ValueError(f"{type(settings).__name__} are settings of no registered method; there are {known}")
