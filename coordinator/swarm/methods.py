"""Random methods: every one of the registry, with small settings of its own.

A method goes with what else a scenario asks of its updates: that they can be summed securely, that they weigh
the same. What a method can be asked is what the registry says of its settings.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from pydantic import BaseModel

from coordinator.scenario.model import random_settings
from edge.core.rng import Draws
from edge.learning.registry import METHODS

Settings = dict[str, Any]

WEIGHTS: Final[dict[str, float]] = {
    "fedrecon": 6,
    "linear-regression": 4,
    "fedmmf": 3,
    "fedmf": 2,
    "fedavg-mf": 2,
    "fedrec": 2,
    "pfedme": 2,
    "blur": 2,
    "lipm": 2,
    "fedncf": 2,
    "fedrecgel": 3,
    "colr": 2,
    "fedrap": 2,
    "gpfedrec": 2,
    "pfedrec": 2,
    "fcf": 2,
    "federated-context": 2,
    "local-context": 2,
}
"""How often each of these methods is drawn."""

_LATER: Final[dict[str, float]] = {"dp-mf": 2}
"""How often methods are drawn that came later, the first of them first; see :func:`drawn`."""


@dataclass(frozen=True, slots=True)
class Asked:
    """What is asked of a method's updates: that they are ``dense``, that they weigh alike (``uniform``)."""

    dense: bool
    uniform: bool


@dataclass(frozen=True, slots=True)
class Drawn:
    """A method: its ``settings``, as a scenario writes them, and what the registry says of these."""

    settings: Settings
    stepwise: bool
    only_ranks: bool
    draws_items: bool
    learns_ones: bool


_SUITABLE_TRIES: Final = 20
_SELDOM: Final = 2.0
"""The weight of a method that is a plug-in."""


def drawn(seed: int, index: int) -> str:
    """Return the method of scenario ``index`` of the swarm under ``seed``, by their weights.

    One that came later takes its share of all scenarios, and all others stay what they are.
    """
    name, whole = Draws(seed, index, "algorithm").weighted(WEIGHTS), sum(WEIGHTS.values())
    plugins = {one: _SELDOM for one in METHODS if one not in WEIGHTS and one not in _LATER}
    for later, weight in (*_LATER.items(), *plugins.items()):
        whole += weight
        if Draws(seed, index, "algorithm", later).chance(weight / whole):
            name = later
    return name


def able(name: str, asked: Asked) -> bool:
    """Return whether a method has settings that give what is asked of it."""
    return name in _SETTINGS or _suitable(Draws(0, "able", name), name, asked) is not None


def _suitable(draws: Draws, name: str, asked: Asked) -> Settings | None:
    """Return random settings of a plug-in that give what is asked; None where no try did."""
    entry = METHODS[name]
    for _ in range(_SUITABLE_TRIES):
        made = random_settings(entry.Settings, draws)
        settings = entry.Settings.model_validate(made)
        if entry.dense(settings) >= asked.dense and entry.uniform(settings) >= asked.uniform:
            return made
    return None


def has_rows_of_users(name: str) -> bool:
    """Return whether a method keeps users' rows on the coordinator, which no sum can hide."""
    return METHODS[name].user_rows


def method(draws: Draws, name: str, asked: Asked) -> Drawn:
    """Return random settings of the method ``name``."""
    entry = METHODS[name]
    if name in _SETTINGS:
        made: Settings = {"algorithm": name, **_SETTINGS[name](draws, asked)}
    else:
        found = _suitable(draws, name, asked)
        assert found is not None, "what a method is not able to do is not asked of it"
        made = {**found, "algorithm": name}
    settings: BaseModel = entry.Settings.model_validate(made)
    return Drawn(
        made,
        entry.stepwise(settings),
        entry.only_ranks(settings),
        entry.draws_items(settings),
        entry.learns_ones(settings),
    )


def _server(draws: Draws) -> Settings:
    kind = draws.weighted({"sgd": 6, "adam": 2, "adagrad": 1, "momentum": 1})
    optimizer = {"kind": "sgd", "momentum": "50%"} if kind == "momentum" else {"kind": kind}
    return {"optimizer": optimizer, "learning_rate": draws.between(0.01, 1.0)}


def _uploads(draws: Draws, asked: Asked) -> Settings:
    made: Settings = {}
    if asked.dense or draws.chance(0.3):
        made["upload"] = "dense"
    return {**made, **_weighting(draws, asked)}


def _weighting(draws: Draws, asked: Asked) -> Settings:
    return {"weighting": "uniform"} if asked.uniform or draws.chance(0.3) else {}


def _biases(draws: Draws) -> Settings:
    return {key: "false" for key in ("item_bias", "user_bias") if draws.chance(0.2)}


def _steps(draws: Draws) -> Settings:
    """Return gradient steps on all of a device's examples."""
    made: Settings = {"method": "gradient-steps", "steps": draws.whole(1, 3)}
    return {**made, "learning_rate": draws.between(0.01, 1)}


def _descent(draws: Draws) -> Settings:
    if draws.chance(0.6):
        return _steps(draws)
    made: Settings = {"method": "mini-batches", "batch_size": draws.whole(1, 4)}
    return {**made, "epochs": draws.whole(1, 2), "learning_rate": draws.between(0.01, 0.5)}


def _client(draws: Draws) -> Settings:
    """Return steps of the items, at times other than by default, and what pulls them back (FedProx)."""
    made: Settings = {}
    if draws.chance(0.5):
        made["client"] = _descent(draws)
    if draws.chance(0.3):
        made["proximal"] = draws.between(0.001, 1)
    return made


def _reconstruction(draws: Draws) -> Settings:
    """Return how user factors are fitted, and whether they are kept."""
    made: Settings = {}
    if draws.chance(0.4):
        made["reconstruction"] = _descent(draws)
        if draws.chance(0.5):
            return {**made, "user_factors": "persistent"}
    if draws.chance(0.2):
        made["split"] = "support-query"
    return made


def _factorization(draws: Draws, asked: Asked) -> Settings:
    made: Settings = {"factors": draws.whole(1, 4), **_server(draws)}
    return {**made, **_uploads(draws, asked), **_biases(draws)}


def _loss(draws: Draws, *fitted: str) -> Settings:
    """Return at times another loss than the default, and the steps that it asks for where ``fitted``."""
    if not draws.chance(0.3):
        return {}
    loss = draws.one(("cross-entropy", "bpr", "sampled-softmax"))
    return {"loss": loss, **{key: _steps(draws) for key in fitted}}


def _squared(draws: Draws, asked: Asked) -> Settings:
    """Return settings of FedRecon with the loss that all methods around it have."""
    return {**_factorization(draws, asked), **_reconstruction(draws), **_client(draws)}


def _fedrecon(draws: Draws, asked: Asked) -> Settings:
    return {**_squared(draws, asked), **_loss(draws, "reconstruction", "client")}


def _mask(draws: Draws) -> Settings:
    kind = draws.one(("zero-order", "one-order", "two-order", "high-order"))
    if kind == "high-order":
        return {"kind": kind, "width": draws.whole(1, 3), "epochs": draws.whole(1, 5)}
    return {"kind": kind}


def _fedmmf(draws: Draws, asked: Asked) -> Settings:
    return {**_squared(draws, asked), "mask": _mask(draws)}


def _fedmf(draws: Draws, asked: Asked) -> Settings:
    made = {**_factorization(draws, asked), **_client(draws)}
    if draws.chance(0.5):
        made["reconstruction"] = _descent(draws)
    return {**made, **_loss(draws, "reconstruction", "client")}


def _fedrec(draws: Draws, asked: Asked) -> Settings:
    made = {**_factorization(draws, asked), **_client(draws)}
    if draws.chance(0.5):
        made["reconstruction"] = _steps(draws)
    made["virtual_share"] = draws.whole(0, 3)
    made["predict_after"] = draws.whole(0, 3)
    return {
        **made,
        "filling": draws.one(("user-mean", "hybrid")),
        "draw": draws.one(("once", "every-round")),
    }


def _blur(draws: Draws, asked: Asked) -> Settings:
    made = {**_factorization(draws, asked), **_reconstruction(draws)}
    if draws.chance(0.5):
        made["client"] = _steps(draws)
    made |= {"norm_bound": draws.between(0.01, 2), "norm_penalty": draws.between(0.1, 2)}
    return {**made, "keep": f"{draws.whole(1, 100)}%"}


def _lipm(draws: Draws, asked: Asked) -> Settings:
    made = {**_squared(draws, asked), "upload": "dense"}
    made |= {"window": draws.whole(1, 6), "interest_width": draws.whole(1, 4)}
    made |= {"attention_bound": draws.whole(0, 2), "attention_scale": draws.between(0.1, 2)}
    return {**made, "fine_tuning": _steps(draws)} if draws.chance(0.3) else made


def _shared_rows(draws: Draws) -> Settings:
    made: Settings = {"factors": draws.whole(1, 4), **_server(draws), **_biases(draws)}
    made["new_users"] = draws.one(("mean", "initial"))
    if draws.chance(0.5):
        made["client"] = _descent(draws)
    if draws.chance(0.3):
        made["user_learning_rate"] = draws.between(0.1, 1)
    return {**made, **_loss(draws, "client")}


def _fedavg_mf(draws: Draws, asked: Asked) -> Settings:
    made = _shared_rows(draws)
    if draws.chance(0.3):
        made["proximal"] = draws.between(0.001, 1)
    if draws.chance(0.3):
        made["fine_tuning"] = _steps(draws) if "loss" in made else {"method": "ridge"}
    return made


def _pfedme(draws: Draws, asked: Asked) -> Settings:
    proximity = draws.between(1, 30)
    return {
        **_shared_rows(draws),
        "proximity": proximity,
        "inner_steps": draws.whole(1, 3),
        "inner_learning_rate": draws.between(0.1, 1.8) / proximity,
    }


def _fedncf(draws: Draws, asked: Asked) -> Settings:
    made: Settings = {"gmf_factors": draws.whole(1, 3), "mlp_factors": draws.whole(1, 3)}
    made |= _server(draws)
    made["layers"] = [draws.whole(1, 4) for _ in range(draws.whole(1, 2))]
    made |= {"negatives": draws.whole(1, 4), "user_steps": draws.whole(0, 2), **_uploads(draws, asked)}
    if made["user_steps"] and draws.chance(0.3):
        made["user_embeddings"] = "reconstructed"
    if draws.chance(0.5):
        made["client"] = _descent(draws)
    return {**made, **_loss(draws, "client")}


def _colr(draws: Draws, asked: Asked) -> Settings:
    made = _factorization(draws, asked)
    made["rank"] = draws.whole(1, made["factors"])
    made["average"] = draws.one(("touched", "cohort"))
    # By default every update weighs 1.
    made["weighting"] = "uniform" if asked.uniform or draws.chance(0.5) else "examples"
    if draws.chance(0.5):
        how: Settings = draws.one((
            {"method": "gradient-steps", "steps": 1},
            {"method": "mini-batches", "batch_size": draws.whole(1, 4)},
        ))  # fmt: skip
        made["client"] = {**how, "learning_rate": draws.between(0.01, 0.5)}
    return {**made, "reconstruction": _descent(draws)} if draws.chance(0.5) else made


def _heads(draws: Draws, asked: Asked) -> Settings:
    """Return settings of recommenders whose users are heads on item rows."""
    made: Settings = {"factors": draws.whole(1, 4), "negatives": draws.whole(1, 4), **_server(draws)}
    made["item_learning_rate"] = draws.between(0.01, 1)
    # By default every update weighs 1.
    made["weighting"] = "uniform" if asked.uniform or draws.chance(0.5) else "examples"
    if asked.dense or draws.chance(0.3):
        made["upload"] = "dense"
    return {**made, "client": _descent(draws)} if draws.chance(0.5) else made


def _pfedrec(draws: Draws, asked: Asked) -> Settings:
    return {**_heads(draws, asked), "served_table": draws.one(("personal", "server"))}


def _fedrap(draws: Draws, asked: Asked) -> Settings:
    made = {**_heads(draws, asked), "curriculum_rounds": draws.whole(0, 3)}
    for key in ("parting", "sparsity"):
        if draws.chance(0.5):
            made[key] = draws.between(0.001, 1)
    if draws.chance(0.3):
        made |= {"parting_limit": draws.between(0.1, 5), "batch_decay": "95%", "round_decay": "97%"}
    return made


def _gpfedrec(draws: Draws, asked: Asked) -> Settings:
    made: Settings = {"factors": draws.whole(1, 3), "negatives": draws.whole(1, 3)}
    made["layers"] = [draws.whole(1, 4) for _ in range(draws.whole(1, 2))]
    made |= {key: draws.between(0.01, 0.5) for key in ("user_learning_rate", "item_learning_rate")}
    made["neighbours"] = draws.one(("similar", "dissimilar", "random"))
    made["served_table"] = draws.one(("personal", "server"))
    made |= {"pull": draws.between(0.01, 1), "threshold": draws.between(0.1, 2), "hops": draws.whole(1, 2)}
    made["learning_rate"] = draws.between(0.1, 1)
    return {**made, "client": _descent(draws)} if draws.chance(0.5) else made


def _fcf(draws: Draws, asked: Asked) -> Settings:
    made: Settings = {"factors": draws.whole(1, 4), **_server(draws)}
    made["confidence"] = draws.between(0.1, 20)
    made["strength"] = draws.one(("one", "log", "rating"))
    made["user_regularization"] = draws.between(0.1, 10)
    made["item_regularization"] = draws.one((0, draws.between(0.001, 0.1)))
    return {**made, "upload": "dense"} if asked.dense or draws.chance(0.3) else made


def _dp_mf(draws: Draws, asked: Asked) -> Settings:
    made: Settings = {"epsilon": draws.between(0.1, 100), "factors": draws.whole(1, 4)}
    made |= {key: draws.between(0.1, 20) for key in ("regularization", "bias_regularization")}
    return {**made, "upload": "dense"} if asked.dense or draws.chance(0.3) else made


def _fedrecgel(draws: Draws, asked: Asked) -> Settings:
    made: Settings = {
        key: draws.one((0, draws.between(0.001, 1))) for key in ("shared_radius", "local_radius")
    }
    base: Settings = {"algorithm": draws.one(("fedncf", "fedrecon"))}
    if base["algorithm"] == "fedncf":
        return {**made, "base": {**base, **_fedncf(draws, asked)}}
    base |= {**_factorization(draws, asked), "reconstruction": _steps(draws), "client": _steps(draws)}
    if draws.chance(0.5):
        base["user_factors"] = "persistent"
    return {**made, "base": base}


def _federated_context(draws: Draws, asked: Asked) -> Settings:
    kind = draws.one(("linear", "factorization-machine", "network"))
    size = {"linear": "", "factorization-machine": "factors", "network": "width"}[kind]
    made: Settings = {"model": {"kind": kind, **({size: draws.whole(1, 3)} if size else {})}}
    if draws.chance(0.3):
        made["user_features"] = "false"
    made["client"] = _steps(draws)
    return {**made, **_server(draws), **_weighting(draws, asked)}


def _linear_regression(draws: Draws, asked: Asked) -> Settings:
    made = _server(draws)
    if draws.chance(0.4):
        return {**made, "local": {"method": "gradient"}}
    made["local"] = _descent(draws)
    if draws.chance(0.3):
        made["proximal"] = draws.between(0.001, 1)
    return made


_SETTINGS: Final[dict[str, Callable[[Draws, Asked], Settings]]] = {
    "fedrecon": _fedrecon,
    "linear-regression": _linear_regression,
    "fedmmf": _fedmmf,
    "fedmf": _fedmf,
    "fedavg-mf": _fedavg_mf,
    "fedrec": _fedrec,
    "pfedme": _pfedme,
    "blur": _blur,
    "lipm": _lipm,
    "fedncf": _fedncf,
    "fedrecgel": _fedrecgel,
    "colr": _colr,
    "pfedrec": _pfedrec,
    "fedrap": _fedrap,
    "gpfedrec": _gpfedrec,
    "fcf": _fcf,
    "dp-mf": _dp_mf,
    "federated-context": _federated_context,
    "local-context": lambda draws, _: {"model": _mask(draws)},
}
"""The settings of each built-in method."""
