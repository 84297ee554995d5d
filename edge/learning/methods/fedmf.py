"""FedMF: matrix factorisation with user factors that stay on the devices, by stochastic gradient descent.

Source: Chai et al., "Secure Federated Matrix Factorization" (IEEE Intelligent Systems 2021, arXiv
1906.05108). A round on the device of user u, which has kept p_u:

    e_ui = r_ui − μ − p_u·q_i               with the old p_u
    p_u ← p_u − γ_u Σ_i (λ p_u − e_ui q_i)
    e_ui anew, with the new p_u
    upload  −η_ui = e_ui p_u − λ q_i         a row for every rated item

and on the coordinator Q ← Q − γ Σ_u η_ui, a sum over the devices, not their mean. (Equation 7 of the FedMMF
paper, which repeats the user's step, has its sign wrong.)

It is FedRecon with persistent user factors (:mod:`edge.learning.methods.fedrecon.algorithm`) and the sum in
place of the mean. There is no arithmetic here but that sum. Those equations, with SGD on the coordinator, are
settings; the defaults take normalized steps on the user and let Adam scale those on the items, since a rate
that suits the sum over a cohort's longest histories hardly moves all else. What an upload reveals is what
FedRecon's reveals.
"""

from __future__ import annotations

import dataclasses
from typing import Annotated, Literal

from pydantic import Field

from device_profiles.fields import ByKey, PositiveFloat, StrictBool
from edge.learning.base import OptimizerState, State
from edge.learning.method_settings import GradientSteps, LocalDescent, MiniBatches, SubtractMean, UserSteps
from edge.learning.methods.fedrecon.algorithm import FedRecon
from edge.learning.methods.fedrecon.settings import ReconstructionSettings
from edge.learning.server_optimizers import AdamSettings, ServerOptimizer
from edge.learning.updates import ROWS, Aggregate


class FactorizationSettings(ReconstructionSettings):
    """Settings of a factorisation with user factors that stay on the devices."""

    item_bias: StrictBool = Field(default=False, description="learn a bias for every item")
    user_bias: StrictBool = Field(default=False, description="keep a bias for every user, on its device")
    subtract_mean: SubtractMean = True
    reconstruction: Annotated[UserSteps | MiniBatches, ByKey("method")] = Field(
        default=UserSteps.model_construct(method="gradient-steps"),
        description="a device's steps on its user factors, from those of its last round",
    )
    split: Literal["none"] = Field(default="none", description="all ratings are for both kinds of steps")
    user_factors: Literal["persistent"] = Field(
        default="persistent", description="devices keep their user factors"
    )
    client: LocalDescent = Field(
        default=GradientSteps.model_construct(
            method="gradient-steps", steps=1, learning_rate=1.0, regularization=0.1
        ),
        description="a device's steps on the items: one of rate 1 uploads the gradient",
    )
    optimizer: ServerOptimizer = AdamSettings.model_construct(beta2=0.99, epsilon=1e-4)
    learning_rate: PositiveFloat = Field(default=0.05, description="server learning rate γ")


class FedMFSettings(FactorizationSettings):
    """Settings of FedMF."""

    algorithm: Literal["fedmf"]


class FedMF(FedRecon):
    """FedMF; see the module and :class:`FedMFSettings`.

    State and upload are those of :class:`~edge.learning.methods.fedrecon.algorithm.FedRecon`; devices keep
    p_u (and b_u).
    """

    Settings = FedMFSettings

    def server_update(
        self, state: State, optimizer_state: OptimizerState, aggregate: Aggregate, round_number: int
    ) -> tuple[State, OptimizerState]:
        """Let the server optimiser apply the sum of the devices' steps, not the mean; shrunk by γ."""
        kept, touched = 1.0 - aggregate.shrinkage, aggregate.rows(ROWS)
        if touched is None:
            return self.apply(state, optimizer_state, aggregate.sums[ROWS] * kept, round_number)
        rows = dataclasses.replace(touched, rows=touched.rows * kept)
        return self.apply(state, optimizer_state, rows, round_number)
