"""The methods by name: their settings, and how to make them.

A scenario's ``learning`` section is one of the settings models, told apart by ``algorithm``. The table of the
built-in ones is in :mod:`edge.plugins`; see docs/adding-an-algorithm.md.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final, Literal, NamedTuple, get_args

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
from edge.plugins import ALGORITHMS, Kind, View


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


class BuiltIn:
    """The methods that recfleet ships, which the table of :mod:`edge.plugins` refers to."""

    fedrecon = Method(
        FedReconSettings,
        FedRecon,
        "ratings",
        uniform=_weighs_alike,
        dense=_uploads_all,
        stepwise=_always,
    )
    fedmmf = Method(
        FedMMFSettings,
        FedMMF,
        "ratings",
        uniform=_weighs_alike,
        dense=_uploads_all,
        stepwise=_always,
        features=True,
    )
    federated_context = Method(
        FederatedContextSettings,
        FederatedContext,
        "ratings",
        uniform=_weighs_alike,
        dense=_always,
        stepwise=_always,
        features=True,
    )
    local_context = Method(
        LocalContextSettings,
        LocalContext,
        "ratings",
        uniform=_always,
        dense=_always,
        stepwise=_never,
        features=True,
        uploads=False,
    )
    fedncf = Method(
        FedNCFSettings,
        FedNCF,
        "ratings",
        uniform=_weighs_alike,
        dense=_uploads_all,
        stepwise=_always,
        only_ranks=_always,
    )
    fedrecgel = Method(
        FedRecGELSettings,
        fedrecgel,
        "ratings",
        uniform=lambda settings: settings.base.weighting == "uniform",
        dense=lambda settings: settings.base.upload == "dense",
        stepwise=_always,
        only_ranks=lambda settings: isinstance(settings.base, FedNCFSettings),
    )
    fedmf = Method(
        FedMFSettings,
        FedMF,
        "ratings",
        uniform=_weighs_alike,
        dense=_uploads_all,
        stepwise=_always,
    )
    fedavg_mf = Method(
        FedAvgMFSettings,
        FedAvgMF,
        "ratings",
        uniform=_never,
        dense=_never,
        stepwise=_always,
    )
    fedrec = Method(
        FedRecSettings,
        FedRec,
        "ratings",
        uniform=_weighs_alike,
        dense=_uploads_all,
        stepwise=_always,
        added_examples=lambda settings: float(settings.virtual_share),
    )
    pfedme = Method(
        PFedMeSettings,
        PFedMe,
        "ratings",
        uniform=_never,
        dense=_never,
        stepwise=_always,
    )
    blur = Method(
        BLURSettings,
        BLUR,
        "ratings",
        uniform=_weighs_alike,
        dense=_uploads_all,
        stepwise=_always,
    )
    lipm = Method(
        LIPMSettings,
        LIPM,
        "ratings",
        uniform=_weighs_alike,
        dense=_always,
        stepwise=_always,
        timed=True,
    )
    linear_regression = Method(
        LinearRegressionSettings,
        LinearRegression,
        "regression",
        uniform=_never,
        dense=_always,
        stepwise=lambda settings: not isinstance(settings.local, Gradient),
    )


def _lacks(method: Method) -> Iterator[str]:
    """Yield what keeps a method from being found by its name."""
    algorithm = method.settings.model_fields.get("algorithm")
    if algorithm is None or len(get_args(algorithm.annotation)) != 1:
        yield f"has settings, {method.settings.__name__}, without a field 'algorithm: Literal[\"its-name\"]'"


def _name_of(method: Method) -> str:
    return str(get_args(method.settings.model_fields["algorithm"].annotation)[0])


KIND: Final = Kind("algorithm", Method, _name_of, _lacks)
"""The extension point."""

METHODS: Final[Mapping[str, Method]] = View(ALGORITHMS)
"""Every method by the name that ``learning.algorithm`` gives it."""


def create(settings: BaseModel, problem: Problem) -> Algorithm[Any]:
    """Make the method that ``settings`` belong to.

    Raises
    ------
    ValueError : ``settings`` belong to no registered method, or the problem lacks what the method needs.
    """
    name: str = getattr(settings, "algorithm", "")
    if name not in METHODS or type(settings) is not METHODS[name].settings:
        known = ", ".join(sorted(METHODS))
        raise ValueError(f"{type(settings).__name__} are settings of no registered method; there are {known}")
    algorithm: Algorithm[Any] = METHODS[name].algorithm(settings, problem)
    return algorithm
