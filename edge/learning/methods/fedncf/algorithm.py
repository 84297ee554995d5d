"""FedNCF: a neural recommender of implicit feedback, its user embeddings kept on the devices.

Source: Perifanis and Efraimidis, "Federated Neural Collaborative Filtering" (Knowledge-Based Systems
2022), with the network NeuMF (:mod:`edge.learning.neumf`). Shared: item embeddings and the network's weights.
Local, never uploaded: the user's embeddings, kept from round to round or fitted from zero every time.

Every rating of the data is a positive, whatever its value (``data.positive`` drops the low ones). A round on
a device: draw negatives (:mod:`edge.learning.sampled_negatives`); take some steps on the user's embeddings
alone; take the client's steps on everything; upload how the item rows and the network changed.

What an upload reveals. A sparse upload names the items of the examples, the positives among four times as
many others, and their rows tell which are which: a positive's moves towards the user, a negative's away from
it. A dense one reveals as much in the clear, and can be summed under masks.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from edge.core.rng import hashed_bits, stream
from edge.learning import fedrecon_kernels, layers, neumf
from edge.learning.base import OptimizerState, Problem, RatingBatch, State, Work
from edge.learning.method_settings import step_counts, work_share
from edge.learning.methods.fedncf.local import GMF, MLP, NETWORK, ItemRows, LocalTraining, rows_of
from edge.learning.methods.fedncf.settings import FedNCFSettings, fedncf_work
from edge.learning.neumf import NetworkShape
from edge.learning.row_uploads import RowRecommender, RowUploads
from edge.learning.sampled_negatives import NEGATIVES_DRAW, Examples, ZeroOne
from edge.learning.sharpness import Radii
from edge.learning.updates import ITEMS, ROWS, Aggregate, Array, UpdateBatch


class FedNCF(RowRecommender):
    """FedNCF; see the module for what it does and :class:`FedNCFSettings`.

    State: ``gmf_items`` [items, gmf_factors], ``mlp_items`` [items, mlp_factors], ``network`` [weights].
    Upload, times the weight: ``item_rows`` [n, gmf_factors + mlp_factors], ``network`` [weights], and when
    sparse ``items`` [n]. All arithmetic in ``dtype``. With ``radii`` every step is sharpness-aware.
    """

    Settings = FedNCFSettings
    samples_negatives = True
    settings: FedNCFSettings

    def __init__(
        self,
        settings: FedNCFSettings,
        problem: Problem,
        dtype: type[Any] = np.float32,
        radii: Radii = Radii(),  # noqa: B008 - a tuple of numbers
    ) -> None:
        if problem.n_items < 1:
            raise ValueError("fedncf learns from ratings; this problem has no items")
        super().__init__(settings, problem)
        self.n_items = problem.n_items
        self.zero_one = ZeroOne(settings.negatives, self.n_items, problem.kept_back)
        self.dtype = np.dtype(dtype)
        self.shape = NetworkShape(settings.gmf_factors, settings.mlp_factors, settings.layers)
        self.radii = radii
        self.layout = RowUploads(
            self.n_items,
            self.shape.width,
            self.dtype,
            dense=settings.upload == "dense",
            whole={NETWORK: self.shape.weights},
        )
        self.training = LocalTraining(settings, self.shape, self.dtype, radii)
        self.local_width = self.shape.width if settings.user_embeddings == "persistent" else 0
        """Numbers that a device keeps of each of its users: its embeddings, or nothing."""

    def initial_state(self, seed: int) -> State:
        """Return item embeddings ~ N(0, ``initial_scale``²), and a network that passes on what it is given.

        Dense layers are drawn as He et al. 2015 do for relu, N(0, 2 / inputs). Biases are 0, h_g is 1 and
        h_m is N(0, 1 / inputs): before the first round the prediction is near u_g·q_g.
        """
        s, shape = self.settings, self.shape
        vector = np.zeros((1, shape.weights), self.dtype)
        network = neumf.network_of(shape, vector)
        draws = stream(seed, "learning", "network")
        for weights in network.dense:
            weights[0] = draws.standard_normal(weights.shape[1:]) * np.sqrt(2.0 / weights.shape[1])
        network.gmf[:] = 1.0
        network.mlp[0] = draws.standard_normal(network.mlp.shape[1]) / np.sqrt(network.mlp.shape[1])
        state = {NETWORK: vector[0]}
        for name, width in ((GMF, shape.gmf), (MLP, shape.mlp)):
            table = stream(seed, "learning", name).standard_normal((self.n_items, width))
            state[name] = (s.initial_scale * table).astype(self.dtype)
        return state

    def local_steps(self, examples: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Return how many steps on everything users with this many positives take."""
        return step_counts(self.settings.client, self.zero_one.counts(examples))

    def work(self, examples: npt.NDArray[np.int64], steps: npt.NDArray[np.int64] | None = None) -> Work:
        """Return what a round costs users with this many positives; see :mod:`work`."""
        rows = self.zero_one.counts(examples)
        return fedncf_work(self.settings, self.shape, self.n_items, rows, self.radii, steps)

    def changed_rows(self, examples: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Return how many rows users with this many positives change: those of all that they train on."""
        return self.zero_one.counts(examples)

    def training_examples(
        self,
        batch: RatingBatch,
        client_keys: npt.NDArray[np.uint64],
        clients: npt.NDArray[np.int64] | None = None,
    ) -> RatingBatch:
        """Return ones for positives, and zeros for the negatives that users draw."""
        return self._examples(batch, fedrecon_kernels.ClientUsers.of(client_keys, clients).keys).zero_one()

    def client_update(
        self,
        state: State,
        batch: RatingBatch,
        client_keys: npt.NDArray[np.uint64],
        clients: npt.NDArray[np.int64] | None = None,
        steps: npt.NDArray[np.int64] | None = None,
        local: Array | None = None,
    ) -> UpdateBatch:
        """Train every user on its positives and as many negatives as the settings say.

        See :meth:`edge.learning.base.Recommender.client_update`. A client of several users uploads the sum of
        its users' deltas: weighted by their positives, or their mean with uniform weights.

        Raises
        ------
        ValueError : ``steps`` is given and clients hold several users.
        """
        s, shape = self.settings, self.shape
        users = len(batch.indptr) - 1
        held = fedrecon_kernels.ClientUsers.of(client_keys, clients, steps)
        owners, keys = held.owners, held.keys
        positives = np.diff(batch.indptr)
        examples = self._examples(batch, keys)
        counts = np.diff(examples.indptr)
        weights = held.weights(s.weighting, positives)
        done = work_share(steps, step_counts(s.client, counts))
        rows = np.empty((len(examples.items), shape.width), self.dtype)
        network = np.empty((users, shape.weights), self.dtype)
        kept = np.empty((users, shape.width), self.dtype)
        losses = np.zeros(users)
        # Everything has moved by minus the rate times the sum of its gradients.
        factors = self.dtype.type(-s.client.learning_rate) * np.asarray(weights * done).astype(self.dtype)
        user_rate = self.dtype.type(s.user_learning_rate)
        for start in self.training.starts(state, examples, keys, local):
            part, those = start.part, slice(start.first, start.end)
            point = self.training.personalised(start)
            limits = None if steps is None else steps[those]
            sums, losses[those] = self.training.descend(start, point, keys[those], limits, network[those])
            assert sums.gmf is not None
            assert sums.mlp is not None
            assert sums.users is not None
            factor = np.repeat(factors[those], counts[those])[:, None]
            np.multiply(sums.gmf, factor, out=rows[part, : shape.gmf])
            np.multiply(sums.mlp, factor, out=rows[part, shape.gmf :])
            network[those] *= factors[those, None]
            np.subtract(point.users, user_rate * sums.users, out=kept[those])
        items = examples.items.astype(self.layout.item_dtype)
        offsets, summed = examples.indptr, positives
        if clients is not None:
            items, rows, offsets = fedrecon_kernels.merge_users(
                items, rows, np.repeat(owners, counts), len(held.per_client)
            )
            network = layers.row_sums(network, clients.tolist())
            losses = np.asarray(np.bincount(owners, losses * positives, minlength=len(held.per_client)))
            summed = np.bincount(owners, positives, minlength=len(held.per_client)).astype(np.int64)
            losses = losses / np.maximum(summed, 1)
        fields: dict[str, Any] = {
            "stacked": {NETWORK: network},
            "ragged": {ITEMS: items, ROWS: rows},
            "offsets": offsets,
            "weights": np.asarray(summed if s.weighting == "examples" else summed > 0, dtype=np.float64)
            * done,
            "examples": summed,
            "losses": losses,
        }
        if self.local_width:
            fields["local"] = kept
            fields["local_offsets"] = np.arange(users + 1) if clients is None else clients
        return self.layout.batch(fields)

    def server_update(
        self, state: State, optimizer_state: OptimizerState, aggregate: Aggregate, round_number: int
    ) -> tuple[State, OptimizerState]:
        """Let the server optimiser apply the mean delta of the item rows and the network."""
        s = self.settings
        mean = aggregate.mean()
        update = {
            NETWORK: mean[NETWORK],
            GMF: mean[ROWS][:, : self.shape.gmf],
            MLP: mean[ROWS][:, self.shape.gmf :],
        }
        rate = s.learning_rate * s.schedule.factor(round_number)
        return s.optimizer.apply(state, optimizer_state, update, rate)

    def predict(
        self,
        state: State,
        support: RatingBatch,
        query: RatingBatch,
        client_keys: npt.NDArray[np.uint64],
        local: Array | None = None,
    ) -> Array:
        """Return the probability that users take to their ``query`` items, float64 [N of query].

        Their embeddings are those that they keep after ``user_steps`` steps on ``support``. In float64, so
        that the order of sure things is not lost.
        """
        users = self.reconstruct(state, support, client_keys, local)
        items = ItemRows(self.shape, state, query.items)
        logits = np.empty(int(query.indptr[-1]), self.dtype)
        for first, end in fedrecon_kernels.blocks(query.indptr):
            part = slice(int(query.indptr[first]), int(query.indptr[end]))
            point = items.point(query.items[part], users[first:end])
            logits[part] = neumf.logits(self.shape, point, rows_of(query.indptr, first, end))
        return layers.sigmoid(logits.astype(np.float64))

    def scores(
        self,
        state: State,
        support: RatingBatch,
        client_keys: npt.NDArray[np.uint64],
        local: Array | None = None,
    ) -> npt.NDArray[np.float32]:
        """Return the logit of every item, float32 [n, items]; users as in :meth:`predict`."""
        users = self.reconstruct(state, support, client_keys, local)
        scores = np.empty((len(users), self.n_items), np.float32)
        catalogue = np.arange(self.n_items)
        items = ItemRows(self.shape, state, catalogue)
        rows = rows_of(np.array([0, self.n_items]), 0, 1)
        for index, row in enumerate(scores):
            row[:] = neumf.logits(self.shape, items.point(catalogue, users[index : index + 1]), rows)
        return scores

    def reconstruct(
        self,
        state: State,
        support: RatingBatch,
        client_keys: npt.NDArray[np.uint64],
        local: Array | None = None,
    ) -> npt.NDArray[Any]:
        """Take ``user_steps`` steps on ``support`` and return users' embeddings, [n, width]."""
        if self.settings.user_steps == 0 and local is not None:
            return np.asarray(local, self.dtype)
        users = np.empty((len(support.indptr) - 1, self.shape.width), self.dtype)
        examples = self._examples(support, client_keys)
        for start in self.training.starts(state, examples, client_keys, local):
            users[start.first : start.end] = self.training.personalised(start).users
        return users

    def _examples(self, batch: RatingBatch, keys: npt.NDArray[np.uint64]) -> Examples:
        return self.zero_one.examples(batch, hashed_bits(NEGATIVES_DRAW, keys))
