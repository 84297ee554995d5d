"""The lines of the leaderboard: what each method is run with, what is tried for it, what its uploads reveal.

Every method gets the same search: three values of one rate, that which moves the shared table most directly,
about a third and three times of the documented one; all else is documented (``benchmarks/methods.py`` for
factorisations and FedNCF's rates, ``benchmarks/reconstruction.py`` for FedAvg, ``benchmarks/leave_one_out``
for the others; CoLR has the steps of FedMF and its own defaults else), with 32 factors. What would take too
long is smaller: pFedMe has 2 local steps in the place of 20, FedNCF the layers of GPFedRec.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

_ADAM: Final = {"kind": "adam", "beta2": "99%", "epsilon": 1e-4}
_ITEM_STEP: Final = {"method": "gradient-steps", "steps": 1, "learning_rate": 1, "regularization": 0.02}
_USER_STEPS: Final = {
    "method": "gradient-steps", "steps": 5, "learning_rate": 1, "bias_learning_rate": 0.9,
    "regularization": 0.3, "bias_regularization": 4,
}  # fmt: skip
_RIDGE: Final = {"method": "ridge", "regularization": 1, "bias_regularization": 1}
_PASS: Final = {"method": "mini-batches", "batch_size": 256, "epochs": 1, "learning_rate": 0.1}
_RECONSTRUCTED: Final = {
    "initial_scale": 0.005, "optimizer": _ADAM, "client": _ITEM_STEP, "reconstruction": _RIDGE,
    "weighting": "uniform",
}  # fmt: skip
_KEPT: Final = {
    "item_bias": True, "user_bias": True, "optimizer": _ADAM | {"epsilon": 0.1}, "client": _ITEM_STEP,
    "reconstruction": _USER_STEPS,
}  # fmt: skip


@dataclass(frozen=True)
class Line:
    """A federated method on the leaderboard.

    Attributes
    ----------
    title : how the page calls it.
    page : its page under ``docs/methods``, without the suffix.
    learning : the section ``learning`` of its scenario, without what is searched.
    searched : keys of ``learning`` that all take the value that is tried.
    tried : the values.
    reveals : what one raw upload gives away, in a few words; its page has the reasons.
    secure_sums : whether uploads can be summed under masks, and how.
    draws_itself : it draws its negatives by a setting of its own, or needs none; the others are given ones
        and zeros by ``data.negatives``.
    is_audited : the audit of rated items can read its uploads.
    """

    title: str
    page: str
    learning: Mapping[str, Any]
    searched: tuple[str, ...]
    tried: tuple[float, ...]
    reveals: str
    secure_sums: str
    draws_itself: bool = False
    is_audited: bool = True

    def settings(self, value: float) -> dict[str, Any]:
        """Return the section ``learning`` with the value that is tried."""
        return dict(self.learning) | dict.fromkeys(self.searched, value)


_RATE: Final = ("learning_rate",)
_ROWS: Final = "the rated items (and the negatives) by number; the sign of each row tells which are which"
_DENSE: Final = "yes, with `upload: dense`"

LINES: Final[Mapping[str, Line]] = {
    "fcf": Line(
        "FCF", "fcf",
        {"algorithm": "fcf", "factors": 32, "confidence": 10, "user_regularization": 30,
         "item_regularization": 0.03},
        _RATE, (0.015, 0.05, 0.15),
        "everything: rows that are not zero are the list, their lengths the confidence", _DENSE, True,
    ),
    "fedrecon": Line(
        "FedRecon", "fedrecon", {"algorithm": "fedrecon", "factors": 32, **_RECONSTRUCTED},
        _RATE, (0.03, 0.1, 0.3), _ROWS, _DENSE,
    ),
    "fedmf": Line(
        "FedMF", "fedmf", {"algorithm": "fedmf", "factors": 32, "initial_scale": 0.1, **_KEPT},
        _RATE, (0.01, 0.03, 0.1), _ROWS + "; two uploads nearly the ratings", _DENSE,
    ),
    "fedavg-mf": Line(
        "FedAvg", "fedavg-mf",
        {"algorithm": "fedavg-mf", "factors": 32, "optimizer": _ADAM | {"epsilon": 1e-5},
         "client": {"method": "gradient-steps", "steps": 16, "learning_rate": 0.8, "regularization": 0.1}},
        _RATE, (0.005, 0.016, 0.05),
        "the user's own row, which the coordinator keeps, and the rated items", "no: a row has one owner",
    ),
    "colr": Line(
        "CoLR, rank 8", "colr",
        {"algorithm": "colr", "factors": 32, "initial_scale": 0.1, "rank": 8, **_KEPT,
         "optimizer": {"kind": "adam"}},
        _RATE, (0.03, 0.1, 0.3),
        "the rated items and the negatives by number (the audit stops there); beside their weights, rows are"
        " multiples of one vector",
        "yes, with `upload: dense`, as short as they are",
    ),
    "pfedrec": Line(
        "PFedRec, the coordinator's table", "pfedrec",
        {"algorithm": "pfedrec", "factors": 32, "negatives": 4, "client": _PASS},
        ("item_learning_rate",), (2.7, 8, 24),
        "the positives: the sign of each row along one direction is the label", _DENSE, True,
    ),
    "lipm": Line(
        "LIPM", "lipm",
        {"algorithm": "lipm", "factors": 32, "interest_learning_rate": 0.05, **_RECONSTRUCTED},
        _RATE, (0.01, 0.03, 0.1),
        _ROWS + "; how predictable the user is; a gradient of the last ratings in order",
        "yes, always dense",
    ),
    "fedncf": Line(
        "FedNCF, layers 32-16-8", "fedncf",
        {"algorithm": "fedncf", "gmf_factors": 32, "mlp_factors": 32, "layers": [32, 16, 8], "negatives": 4,
         "initial_scale": 0.1, "user_learning_rate": 5, "optimizer": _ADAM | {"epsilon": 1e-6},
         "client": {"method": "gradient-steps", "steps": 1, "learning_rate": 1, "regularization": 0}},
        _RATE, (0.006, 0.02, 0.06),
        "the positives by the direction of their rows; the user's embedding up to scale", _DENSE, True,
    ),
    "pfedme": Line(
        "pFedMe", "pfedme",
        {"algorithm": "pfedme", "factors": 32, "initial_scale": 0.1, "optimizer": _ADAM, "proximity": 30,
         "inner_learning_rate": 0.02,
         "client": {"method": "gradient-steps", "steps": 2, "learning_rate": 2, "regularization": 0.02}},
        _RATE, (0.03, 0.1, 0.3),
        "the user's own row, which the coordinator keeps, and the rated items", "no: a row has one owner",
    ),
    "fedrap": Line(
        "FedRAP", "fedrap",
        {"algorithm": "fedrap", "factors": 32, "negatives": 4, "batch_decay": "95%", "round_decay": "97%",
         "client": {"method": "mini-batches", "batch_size": 2048, "epochs": 10, "learning_rate": 1e-4}},
        ("item_learning_rate",), (0.2, 0.6, 1.8),
        "the positives, as of PFedRec, but for the two terms", _DENSE, True,
    ),
    "gpfedrec": Line(
        "GPFedRec, the coordinator's table", "gpfedrec",
        {"algorithm": "gpfedrec", "factors": 32, "layers": [32, 16, 8], "negatives": 4, "client": _PASS,
         "pull": 1},
        ("user_learning_rate", "item_learning_rate"), (2.7, 8, 24),
        "the positives; the coordinator keeps every user's table",
        "refused: the coordinator compares single tables", True, is_audited=False,
    ),
}  # fmt: skip
"""By the name of their folder, the quick ones first: the order in which they run."""

ABSENT: Final[Mapping[str, str]] = {
    "FedRec, FedMMF, FedRecGEL, FedProx, context baselines": "no computing time was given to them",
    "DP-MF": "it hides the values of ratings, and here all of them are one",
    "DPPS, BLUR and central noise": "without noise they are other lines, and with it ε is part of the search",
}
"""Methods that are not on the leaderboard, and why."""
