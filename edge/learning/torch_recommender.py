"""Recommenders written as PyTorch modules: a factory, a loss, and the names of what stays on the devices.

The module is the model of one device. All devices of a batch are computed together by ``torch.func.vmap`` in
chunks of :data:`CHUNK`. A result has the same bits whichever devices share the batch:

* Every chunk has the same size, filled up with empty devices. Eight devices are half of the widest vector
  register, so that a reduction across the devices of a chunk treats all of them alike.
* The rows of a device are filled up to a length that follows from its own number of examples, a multiple of
  16: they begin and end at whole registers.
* MKL's products depend by default on where in memory a matrix lies; :data:`_MKL_MODE` ends that.

The package torch is imported when a method is made; it comes with the extra ``torch``.
"""

from __future__ import annotations

import abc
import contextlib
import copy
import functools
import itertools
import math
import os
import re
import threading
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Final, Literal, NamedTuple

import numpy as np
import numpy.typing as npt
from pydantic import Field, ValidationInfo, field_validator

from device_profiles.fields import NonNegativeInt, PositiveFloat
from edge.core.errors import MissingExtraError
from edge.core.rng import hashed_bits, stream_key
from edge.learning import fedrecon_kernels, layers
from edge.learning.accumulators import DenseAccumulator, RowsAndWholeAccumulator
from edge.learning.base import (
    WORK_KINDS,
    OptimizerState,
    Problem,
    RatingBatch,
    Ratings,
    Recommender,
    State,
    Work,
)
from edge.learning.least_squares import shuffled_ranks
from edge.learning.method_settings import (
    GradientSteps,
    LocalDescent,
    MethodSettings,
    MiniBatches,
    Weighting,
    rows_seen,
    step_counts,
    work_share,
)
from edge.learning.sampled_negatives import draw_examples, negative_counts
from edge.learning.server_optimizers import ConstantSchedule, Schedule, ServerOptimizer, SgdSettings
from edge.learning.updates import (
    ITEMS,
    ROWS,
    Accumulator,
    Aggregate,
    Array,
    ArraySpec,
    DenseUpdateBatch,
    UpdateBatch,
)

if TYPE_CHECKING:
    from torch import Tensor, nn

CHUNK: Final = 8
"""Devices that are computed together."""
THREADS: Final = 1
"""Of torch, while a method computes."""
_ROW_SIZES: Final = np.array([16, *(size << k for k in range(24) for size in (32, 48))])
"""Lengths that the rows of a device are filled up to: whole vector registers, a third too many at most."""
_SCORED_AT_ONCE: Final = 2048
_FLOAT_BYTES: Final = 4
_GATHER, _DENSE, _SCORING = range(len(WORK_KINDS))
_COUNTED_ROWS: Final = (64, 128)
"""Examples of the batches that work is counted on: costs are a straight line through the two."""
# What a draw under a client's key is for.
_NEGATIVES_DRAW, _ORDER_DRAW = 3, 4
_MKL_VARIABLE: Final = "MKL_CBWR"
_MKL_MODE: Final = "AUTO,STRICT"
"""The same bits for matrices at any address; see "Conditional Numerical Reproducibility" in MKL's manual.

Read by MKL at its first use in the process, not when torch is imported.
"""
_TRIED_SHAPES: Final = ((16, 22, 7), (48, 31, 7), (32, 27, 9), (32, 17, 11), (16, 5, 6))
_KERNELS: Final = threading.RLock()
"""Threads and determinism are settings of the process."""

Ints = npt.NDArray[np.int64]
Tensors = Mapping[str, "Tensor"]


def torch_package() -> Any:
    """Return the package torch, imported when it is needed.

    Raises
    ------
    MissingExtraError : it is not installed.
    """
    try:
        import torch  # noqa: PLC0415
    except ModuleNotFoundError as error:
        raise MissingExtraError(
            "a method of PyTorch needs the package torch; pip install 'recfleet[torch]'"
        ) from error
    os.environ.setdefault(_MKL_VARIABLE, _MKL_MODE)
    return torch


@functools.cache
def _check_products() -> None:
    """Raise ``ValueError`` if a product's bits depend on its place in a chunk, as MKL's may by default."""
    with _settled() as torch:
        for rows, left, right in _TRIED_SHAPES:
            first, second = (
                torch.linspace(-1.0, 2.0, CHUNK * rows * width).sin().reshape(CHUNK, rows, width)
                for width in (left, right)
            )
            straight = torch.bmm(first.transpose(1, 2), second)
            turned = torch.bmm(first.flip(0).transpose(1, 2), second.flip(0)).flip(0)
            if not torch.equal(straight, turned):
                raise ValueError(
                    "products of torch depend on where a matrix lies in memory: torch computed something in"
                    f" this process before. Set {_MKL_VARIABLE}={_MKL_MODE} in the environment, or make the"
                    " method before you use torch"
                )


def numerics() -> dict[str, str]:
    """Return what the last bits of a method of PyTorch depend on, beside the numerics of every run."""
    torch = torch_package()
    capability = torch.backends.cpu.get_cpu_capability()
    return {
        "torch": str(torch.__version__),
        "torch_cpu": str(capability),
        "torch_threads": str(THREADS),
        "torch_mkl": os.environ[_MKL_VARIABLE] if torch.backends.mkl.is_available() else "none",
    }


@contextlib.contextmanager
def _settled() -> Iterator[Any]:
    """Have torch compute on one thread by deterministic algorithms; restore its settings afterwards."""
    torch = torch_package()
    with _KERNELS:
        threads = torch.get_num_threads()
        strict = torch.are_deterministic_algorithms_enabled()
        lenient = torch.is_deterministic_algorithms_warn_only_enabled()
        filled = torch.utils.deterministic.fill_uninitialized_memory
        try:
            torch.set_num_threads(THREADS)
            torch.use_deterministic_algorithms(True)
            torch.utils.deterministic.fill_uninitialized_memory = False
            with torch.no_grad():
                yield torch
        finally:
            torch.set_num_threads(threads)
            torch.use_deterministic_algorithms(strict, warn_only=lenient)
            torch.utils.deterministic.fill_uninitialized_memory = filled


class TorchSettings(MethodSettings):
    """Settings of a module all of whose parameters are shared; a method adds ``algorithm`` and its own."""

    client: LocalDescent = Field(
        default=GradientSteps.model_construct(
            method="gradient-steps", steps=1, learning_rate=1.0, regularization=0.0
        ),
        description="a device's steps on everything: gradient-steps or mini-batches",
    )
    weighting: Weighting = "examples"
    upload: Literal["sparse", "dense"] = Field(
        default="sparse", description="upload the changed item rows and their numbers, or the whole tables"
    )
    optimizer: ServerOptimizer = SgdSettings.model_construct(kind="sgd")
    learning_rate: PositiveFloat = Field(default=1.0, description="server learning rate")
    schedule: Schedule = ConstantSchedule.model_construct()


class PersonalTorchSettings(TorchSettings):
    """Settings of a module some of whose parameters stay on the device."""

    personal_parameters: Literal["persistent", "reconstructed"] = Field(
        default="persistent",
        description="keep personal parameters on the device, or fit them from their first values every round",
    )
    personal_steps: NonNegativeInt = Field(
        default=1, description="steps on the personal parameters alone, on all examples, before the client's"
    )
    personal_learning_rate: PositiveFloat = Field(
        default=1.0, description="rate of the personal parameters, in the client's steps, too"
    )

    @field_validator("personal_steps")
    @classmethod
    def _fits(cls, value: int, info: ValidationInfo) -> int:
        if value == 0 and info.data.get("personal_parameters") == "reconstructed":
            raise ValueError(
                "'reconstructed' parameters are made by steps on them; write 1 or more, or"
                " 'personal_parameters: persistent'"
            )
        return value


class _Examples(NamedTuple):
    """Examples of some users, one user after another: ``items`` int64 [R], ``targets`` float32 [R]."""

    indptr: Ints
    items: Ints
    targets: npt.NDArray[np.float32]


class _Chunk(NamedTuple):
    """Up to :data:`CHUNK` users with rows of one length, the rest of the chunk being empty devices.

    ``ids`` [CHUNK, rows], the items of each device's examples in order, filled up with the number of items;
    ``targets`` [CHUNK, rows].
    """

    users: Ints
    counts: Ints
    ids: Ints
    targets: npt.NDArray[np.float32]


class _Values(NamedTuple):
    """Parameters of the devices of a chunk, [CHUNK, …] each: item rows are those of ``ids``."""

    shared: Tensors
    tables: Tensors
    personal: Tensors


class _Cost(NamedTuple):
    """What one evaluation costs: for each number a constant, and a part for every row.

    ``flops``, ``moved`` and ``ops`` have an entry for each of :data:`WORK_KINDS`; ``kept`` are bytes of
    activations.
    """

    flops: npt.NDArray[np.float64]
    moved: npt.NDArray[np.float64]
    ops: npt.NDArray[np.float64]
    kept: float


class TorchRecommender(Recommender):
    """A recommender whose model is an ``nn.Module``; a method defines :meth:`build` and :meth:`loss`.

    State: every parameter by its name; of personal ones, the values that devices begin with, which are not
    trained. Upload, times the weight: the change of every shared parameter that is not in ``item_rows``,
    whole; of those that are, the rows of the device's items beside each other, ``item_rows`` [n, width], and
    when sparse ``items`` [n].

    Attributes
    ----------
    personal : names of the parameters that stay on the device; ``Settings`` is a
        :class:`PersonalTorchSettings` then.
    item_rows : names of the weights of ``nn.Embedding`` tables with a row an item, of which a device trains
        and uploads those of its examples alone. Such a table is looked up by the items that ``forward`` is
        given, and by no others.
    samples_negatives : whether a device draws items that its user has not rated, ``settings.negatives`` for
        each positive; targets are 1 and 0 then, and ratings otherwise.
    """

    personal: ClassVar[tuple[str, ...]] = ()
    item_rows: ClassVar[tuple[str, ...]] = ()
    export_advice: ClassVar[str] = (
        "; write the module that its 'model()' returns by torch.onnx.export, as docs/torch.md shows"
    )
    settings: Any

    @staticmethod
    @abc.abstractmethod
    def build(problem: Problem, settings: Any) -> nn.Module:
        """Return the module of one device: ``forward`` takes items, int64 [R], and returns predictions, [R].

        What it draws comes from the run's seed. It has no dropout, and no statistics of batches.
        """

    @staticmethod
    @abc.abstractmethod
    def loss(prediction: Tensor, target: Tensor) -> Tensor:
        """Return the loss of each example, [R], of float32 [R] both; a device's loss is their mean."""

    def __init__(self, settings: Any, problem: Problem) -> None:
        super().__init__(settings, problem)
        if problem.n_items < 1:
            raise ValueError(f"{self.name()} learns from ratings; this problem has no items")
        _check_products()
        self._whole = self._built(0)
        self._check(self._whole)
        parameters = dict(self._whole.named_parameters())
        shapes = {name: tuple(value.shape) for name, value in parameters.items()}
        self._personal_shapes = {name: shapes[name] for name in self.personal}
        self._row_widths = {name: math.prod(shapes[name][1:]) for name in self.item_rows}
        self._whole_shapes = {
            name: shape for name, shape in shapes.items() if name not in (*self.personal, *self.item_rows)
        }
        self._width = sum(self._row_widths.values())
        self._item_dtype = np.dtype(np.uint16 if problem.n_items < 65_536 else np.int32)
        self._device = self._of_device()
        kept = self.personal and settings.personal_parameters == "persistent"
        self.local_width = sum(map(math.prod, self._personal_shapes.values())) if kept else 0
        """Numbers that a device keeps of each of its users: how its personal parameters have changed."""

    @classmethod
    def dense(cls, settings: Any) -> bool:
        """Return whether an update has the same arrays whatever data made it."""
        return settings.upload == "dense" or not cls.item_rows

    # -- the module --------------------------------------------------------------------------------------

    def _built(self, seed: int) -> nn.Module:
        """Return the module, its parameters drawn from the stream of ``seed``."""
        with _settled() as torch:
            generator = torch.default_generator
            before = generator.get_state()
            try:
                generator.manual_seed(stream_key(seed, "learning", "torch"))
                module: nn.Module = self.build(self.problem, self.settings)
            finally:
                generator.set_state(before)
        return module.requires_grad_(False)

    def _check(self, module: nn.Module) -> None:
        torch = torch_package()
        parameters, parts = dict(module.named_parameters()), dict(module.named_modules())
        n_items, where = self.problem.n_items, self.name()
        needed = PersonalTorchSettings if self.personal else TorchSettings
        if not isinstance(self.settings, needed):
            raise ValueError(f"{where}: derive {type(self.settings).__name__} from {needed.__name__}")
        if self.samples_negatives and not hasattr(self.settings, "negatives"):
            raise ValueError(f"{where}: {type(self.settings).__name__} needs a field 'negatives'")
        for name in (*self.personal, *self.item_rows):
            if name not in parameters:
                raise ValueError(
                    f"{where}: there is no parameter {name!r}; there are {', '.join(parameters)}"
                )
        both = set(self.personal) & set(self.item_rows)
        if both:
            raise ValueError(f"{where}: {sorted(both)} are both personal and rows of items")
        if not set(parameters) - set(self.personal):
            raise ValueError(f"{where}: every parameter is personal, and none is learnt together")
        for name in self.item_rows:
            table = parts[name.rpartition(".")[0]]
            plain = type(table) is torch.nn.Embedding and table.num_embeddings == n_items
            if not plain or table.padding_idx is not None or table.max_norm is not None or table.sparse:
                raise ValueError(
                    f"{where}: item_rows has {name!r}, which is not the weight of a plain nn.Embedding with"
                    f" {n_items} rows"
                )
        for name, value in parameters.items():
            if value.dtype != torch.float32 or value.dim() == 0 or name in (ITEMS, ROWS):
                raise ValueError(
                    f"{where}: the parameter {name!r} is {value.dtype} {list(value.shape)}; parameters are"
                    f" float32, have a dimension or more, and are not called {ITEMS!r} or {ROWS!r}"
                )
        refused = (torch.nn.modules.dropout._DropoutNd, torch.nn.modules.batchnorm._NormBase)
        for name, part in parts.items():
            if isinstance(part, refused) and getattr(part, "p", 1.0) > 0:
                raise ValueError(
                    f"{where}: {name!r} is a {type(part).__name__}; a device's result may depend neither on"
                    " draws of torch nor on statistics of batches"
                )

    def _of_device(self) -> nn.Module:
        """Return the module whose tables of items hold the rows of ``ids`` alone."""
        torch = torch_package()

        def looked_up(table: Any, items: Tensor) -> Any:
            return torch.nn.functional.embedding(torch.searchsorted(table.ids, items), table.weight)

        module = copy.deepcopy(self._whole)
        parts = dict(module.named_modules())
        for name in self.item_rows:
            table: Any = parts[name.rpartition(".")[0]]
            table.register_buffer("ids", torch.arange(self.problem.n_items))
            table.forward = types.MethodType(looked_up, table)
        return module

    def model(self, state: State, personal: Mapping[str, Array] | None = None) -> nn.Module:
        """Return the module of one device with the parameters of ``state``, for what torch does with modules.

        ``personal`` are those of one user, from :meth:`fitted`; None: those that devices begin with.
        """
        torch = torch_package()
        module = copy.deepcopy(self._whole)
        values = {**state, **(personal or {})}
        module.load_state_dict(
            {name: torch.tensor(np.asarray(value)) for name, value in values.items()}, strict=False
        )
        return module

    # -- what is said before a run -----------------------------------------------------------------------

    def initial_state(self, seed: int) -> State:
        """Return the parameters as :meth:`build` makes them, their draws from the stream of ``seed``."""
        return {name: value.numpy().copy() for name, value in self._built(seed).named_parameters()}

    def initial_optimizer_state(self, state: State) -> OptimizerState:
        """Return the server optimiser's own arrays before the first round."""
        initial: OptimizerState = self.settings.optimizer.initial(self._shared(state))
        return initial

    def _shared(self, state: State) -> dict[str, Array]:
        return {name: state[name] for name in (*self._whole_shapes, *self.item_rows)}

    def local_steps(self, examples: Ints) -> Ints:
        """Return how many steps on everything users with this many ratings take."""
        return step_counts(self.settings.client, self._example_counts(examples))

    def upload_spec(self, examples: Ints) -> Sequence[ArraySpec]:
        """Return the arrays uploaded by users with this many ratings."""
        n, dtype = len(examples), np.dtype(np.float32)
        whole = [
            ArraySpec(name, dtype, shape[1:], np.full(n, shape[0], np.int64))
            for name, shape in self._whole_shapes.items()
        ]
        if not self.item_rows:
            return tuple(whole)
        if self.dense(self.settings):
            rows = np.full(n, self.problem.n_items, np.int64)
            return (ArraySpec(ROWS, dtype, (self._width,), rows), *whole)
        rows = np.minimum(self._example_counts(examples), self.problem.n_items)
        return (
            ArraySpec(ITEMS, self._item_dtype, (), rows),
            ArraySpec(ROWS, dtype, (self._width,), rows),
            *whole,
        )

    def accumulator(self, state: State) -> Accumulator:
        """Return an empty accumulator for one round."""
        dtype = np.dtype(np.float32)
        whole = {name: (dtype, shape) for name, shape in self._whole_shapes.items()}
        if not self.item_rows:
            return DenseAccumulator(whole)
        if self.dense(self.settings):
            return DenseAccumulator({ROWS: (dtype, (self.problem.n_items, self._width)), **whole})
        return RowsAndWholeAccumulator(
            ROWS,
            ITEMS,
            index_dtype=self._item_dtype,
            dtype=dtype,
            rows=self.problem.n_items,
            width=self._width,
            whole=whole,
        )

    def server_update(
        self, state: State, optimizer_state: OptimizerState, aggregate: Aggregate, round_number: int
    ) -> tuple[State, OptimizerState]:
        """Let the server optimiser apply the mean change of everything that is shared."""
        s, mean = self.settings, aggregate.mean()
        update = {name: mean[name] for name in self._whole_shapes}
        first = 0
        for name, width in self._row_widths.items():
            update[name] = mean[ROWS][:, first : first + width]
            first += width
        rate = s.learning_rate * s.schedule.factor(round_number)
        moved, optimizer_state = s.optimizer.apply(self._shared(state), optimizer_state, update, rate)
        return {**state, **moved}, optimizer_state

    def work(self, examples: Ints, steps: Ints | None = None) -> Work:
        """Return what a round costs users with this many ratings.

        Flops of products are counted by ``FlopCounterMode`` on two batches of one device; of every other
        operator they are the numbers that it reads or writes, whichever are more. Bytes are those of every
        array that an operator reads or writes.
        """
        s, counts = self.settings, self._example_counts(examples)
        rows = counts.astype(np.float64)
        taken = step_counts(s.client, counts) if steps is None else steps
        seen = rows_seen(s.client, counts, taken).astype(np.float64)
        alone = float(s.personal_steps if self.personal else 0)
        everything, personal = self._costs
        numbers = float(sum(map(math.prod, self._whole_shapes.values())))
        total = np.maximum(taken + alone, 1.0)

        def spent(part: str, update: float) -> npt.NDArray[np.float64]:
            """Return the steps' cost, [n, kinds], with that of subtracting the gradients."""
            of_all, of_personal = (getattr(cost, part) for cost in (everything, personal))
            sum_ = taken[:, None] * of_all[0] + seen[:, None] * of_all[1]
            sum_ = sum_ + alone * (of_personal[0] + rows[:, None] * of_personal[1])
            sum_[:, _DENSE] += update * (taken * numbers + seen * self._width)
            return np.asarray(sum_ / total[:, None])

        batch = rows if isinstance(s.client, GradientSteps) else np.minimum(rows, s.client.batch_size)
        sent = np.full(len(rows), float(self.problem.n_items)) if self.dense(s) else rows
        memory = _FLOAT_BYTES * (
            self.problem.n_items * self._width + 3.0 * numbers + (2.0 * rows + sent) * (self._width + 1)
        )
        memory += everything.kept * batch
        work = Work(
            spent("flops", 2.0),
            spent("moved", 3.0 * _FLOAT_BYTES),
            spent("ops", 0.0),
            total,
            np.ceil(memory).astype(np.int64),
        )
        work.ops[:, _DENSE] += len(self._whole_shapes) + len(self.item_rows)
        return work

    @functools.cached_property
    def _costs(self) -> tuple[_Cost, _Cost]:
        """Costs of a gradient of everything, and of one of the personal parameters alone."""
        with _settled():
            return self._counted(alone=False), self._counted(alone=True)

    def _counted(self, *, alone: bool) -> _Cost:
        """Count one gradient of one device, on batches of two sizes."""
        torch = torch_package()
        found = []
        for size in _COUNTED_ROWS:
            # Rows may repeat: costs follow from shapes.
            ids = torch.arange(size).clamp(max=self.problem.n_items - 1)
            values = {}
            for name, value in self._device.named_parameters():
                rows = (
                    torch.zeros(size, *value.shape[1:]) if name in self.item_rows else value.detach().clone()
                )
                values[name] = rows.requires_grad_(not alone or name in self.personal)
            wanted = [value for value in values.values() if value.requires_grad]
            blocks = [
                {name: values[name] for name in names}
                for names in (self._whole_shapes, self.item_rows, self.personal)
            ]
            weights = torch.full((size,), 1.0 / size)
            with torch.enable_grad(), _traffic(torch) as count:
                shared, tables, personal = blocks
                value, _ = self._objective(shared, tables, personal, ids, ids, torch.zeros(size), weights)
                count["kept"] = count["written"]
                if wanted:
                    torch.autograd.grad(value, wanted, allow_unused=True)
            found.append(count)
        (few, many), (least, most) = _COUNTED_ROWS, found

        def line(part: str) -> npt.NDArray[np.float64]:
            slope = np.maximum((most[part] - least[part]) / (many - few), 0.0)
            return np.stack([np.maximum(least[part] - slope * few, 0.0), slope])

        return _Cost(line("flops"), line("moved"), line("ops"), float(line("kept")[1].sum()))

    # -- what devices compute ----------------------------------------------------------------------------

    def training_examples(
        self, batch: RatingBatch, client_keys: npt.NDArray[np.uint64], clients: Ints | None = None
    ) -> RatingBatch:
        """Return the batch, with zeros for the negatives that users draw where the method samples any."""
        keys = fedrecon_kernels.ClientUsers.of(client_keys, clients).keys
        return Ratings(*self._examples(batch, keys))

    def client_update(
        self,
        state: State,
        batch: RatingBatch,
        client_keys: npt.NDArray[np.uint64],
        clients: Ints | None = None,
        steps: Ints | None = None,
        local: Array | None = None,
    ) -> UpdateBatch:
        """Train every user on its examples; see :meth:`edge.learning.base.Recommender.client_update`.

        A client of several users uploads the sum of its users' changes: weighted by their ratings, or their
        mean with uniform weights.

        Raises
        ------
        ValueError : ``steps`` is given and clients hold several users.
        """
        s, users = self.settings, len(batch.indptr) - 1
        held = fedrecon_kernels.ClientUsers.of(client_keys, clients, steps)
        owners, keys = held.owners, held.keys
        rated = np.diff(batch.indptr)
        examples = self._examples(batch, keys)
        counts = np.diff(examples.indptr)
        weights = held.weights(s.weighting, rated)
        done = work_share(steps, step_counts(s.client, counts))
        factors = np.asarray(weights * done).astype(np.float32)
        rows = np.empty((len(examples.items), self._width), np.float32)
        whole = {name: np.empty((users, *shape), np.float32) for name, shape in self._whole_shapes.items()}
        kept = np.zeros((users, self.local_width), np.float32)
        losses = np.zeros(users)
        first_personal = self._personal_of(state, local, users)
        with _settled():
            for chunk in self._chunks(examples):
                limits = None if steps is None else steps[chunk.users]
                start = self._start(state, first_personal, chunk)
                point = self._personalised(start, chunk)
                end, before = self._descended(point, chunk, keys[chunk.users], limits)
                here, factor = len(chunk.users), factors[chunk.users]
                losses[chunk.users] = before[:here]
                for name, change in whole.items():
                    moved = (end.shared[name] - point.shared[name]).numpy()[:here]
                    change[chunk.users] = moved * factor.reshape(-1, *[1] * (change.ndim - 1))
                tables = [
                    (end.tables[name] - point.tables[name]).flatten(2).numpy() for name in self.item_rows
                ]
                for slot, user in enumerate(chunk.users.tolist()):
                    part = slice(int(examples.indptr[user]), int(examples.indptr[user + 1]))
                    for columns, table in zip(self._columns, tables, strict=True):
                        np.multiply(table[slot, : counts[user]], factor[slot], out=rows[part, columns])
                if self.local_width:
                    kept[chunk.users] = self._row_of(state, end.personal)[:here]
        items, offsets, summed = examples.items.astype(self._item_dtype), examples.indptr, rated
        if clients is not None:
            items, rows, offsets = fedrecon_kernels.merge_users(
                items, rows, np.repeat(owners, counts), len(held.per_client)
            )
            bounds = clients.tolist()
            whole = {
                name: layers.row_sums(change.reshape(users, -1), bounds).reshape(-1, *change.shape[1:])
                for name, change in whole.items()
            }
            losses = np.asarray(np.bincount(owners, losses * rated, minlength=len(held.per_client)))
            summed = np.bincount(owners, rated, minlength=len(held.per_client)).astype(np.int64)
            losses = losses / np.maximum(summed, 1)
        fields: dict[str, Any] = {
            "stacked": whole,
            "ragged": {ITEMS: items, ROWS: rows} if self.item_rows else {},
            "offsets": offsets,
            "weights": np.asarray(summed if s.weighting == "examples" else summed > 0, np.float64) * done,
            "examples": summed,
            "losses": losses,
        }
        if self.local_width:
            fields["local"] = kept
            fields["local_offsets"] = np.arange(users + 1) if clients is None else clients
        if self.item_rows and self.dense(s):
            return DenseUpdateBatch(**fields, n_items=self.problem.n_items)
        return UpdateBatch(**fields)

    def predict(
        self,
        state: State,
        support: RatingBatch,
        query: RatingBatch,
        client_keys: npt.NDArray[np.uint64],
        local: Array | None = None,
    ) -> Array:
        """Return what the module gives for ``query``, float32 [N of query].

        Personal parameters are those of :meth:`fitted`.
        """
        personal = self.fitted(state, support, client_keys, local)
        indptr = np.asarray(query.indptr, np.int64)
        predicted = np.empty(int(indptr[-1]), np.float32)
        asked = _Examples(indptr, np.asarray(query.items, np.int64), np.zeros(len(query.items), np.float32))
        with _settled() as torch:
            values = self._tensors(state, torch)
            for chunk in self._chunks(asked):
                items = torch.from_numpy(np.minimum(chunk.ids, self.problem.n_items - 1))
                found = self._forward(values, self._padded(personal, chunk.users, torch), items).numpy()
                for slot, user in enumerate(chunk.users.tolist()):
                    part = slice(int(indptr[user]), int(indptr[user + 1]))
                    predicted[part] = found[slot, : chunk.counts[slot]]
        return predicted

    def scores(
        self,
        state: State,
        support: RatingBatch,
        client_keys: npt.NDArray[np.uint64],
        local: Array | None = None,
    ) -> npt.NDArray[np.float32]:
        """Return what the module gives for every item, float32 [n, items]; see :meth:`predict`."""
        personal = self.fitted(state, support, client_keys, local)
        n, n_items = len(support.indptr) - 1, self.problem.n_items
        scores = np.empty((n, n_items), np.float32)
        with _settled() as torch:
            values = self._tensors(state, torch)
            for first in range(0, n_items, _SCORED_AT_ONCE):
                part = np.arange(first, min(first + _SCORED_AT_ONCE, n_items))
                shown = np.zeros((CHUNK, int(_filled(len(part)))), np.int64)
                shown[:, : len(part)] = part
                items = torch.from_numpy(shown)
                for start in range(0, n, CHUNK):
                    users = np.arange(start, min(start + CHUNK, n))
                    found = self._forward(values, self._padded(personal, users, torch), items).numpy()
                    scores[users, first : first + len(part)] = found[: len(users), : len(part)]
        return scores

    def fitted(
        self,
        state: State,
        support: RatingBatch,
        client_keys: npt.NDArray[np.uint64],
        local: Array | None = None,
    ) -> dict[str, Array]:
        """Return the personal parameters that :meth:`predict` uses, by name, [n, …] each.

        Those that the devices keep (``local``), after ``personal_steps`` steps on ``support``.
        """
        users = len(support.indptr) - 1
        personal = self._personal_of(state, local, users)
        if not self.personal or self.settings.personal_steps == 0:
            return personal
        fitted = {name: np.empty_like(values) for name, values in personal.items()}
        with _settled():
            for chunk in self._chunks(self._examples(support, client_keys)):
                found = self._personalised(self._start(state, personal, chunk), chunk).personal
                for name, values in fitted.items():
                    values[chunk.users] = found[name].numpy()[: len(chunk.users)]
        return fitted

    def _example_counts(self, rated: Ints) -> Ints:
        if not self.samples_negatives:
            return rated
        return rated + negative_counts(
            rated,
            each=self.settings.negatives,
            n_items=self.problem.n_items,
            kept_back=self.problem.kept_back,
        )

    def _examples(self, batch: RatingBatch, keys: npt.NDArray[np.uint64]) -> _Examples:
        if not self.samples_negatives:
            return _Examples(
                np.asarray(batch.indptr, np.int64),
                np.asarray(batch.items, np.int64),
                np.asarray(batch.ratings, np.float32),
            )
        drawn = draw_examples(
            batch,
            hashed_bits(_NEGATIVES_DRAW, keys),
            each=self.settings.negatives,
            n_items=self.problem.n_items,
            kept_back=self.problem.kept_back,
        )
        return _Examples(drawn.indptr, drawn.items, drawn.positive.astype(np.float32))

    def _chunks(self, examples: _Examples) -> Iterator[_Chunk]:
        """Cut users into chunks of equal lengths, those of one length in their order."""
        counts = np.diff(examples.indptr)
        lengths = _filled(counts)
        for length in np.unique(lengths).tolist():
            alike = np.flatnonzero(lengths == length)
            for first in range(0, len(alike), CHUNK):
                users = alike[first : first + CHUNK]
                ids = np.full((CHUNK, length), self.problem.n_items, np.int64)
                targets = np.zeros((CHUNK, length), np.float32)
                for slot, user in enumerate(users.tolist()):
                    part = slice(int(examples.indptr[user]), int(examples.indptr[user + 1]))
                    ids[slot, : counts[user]] = examples.items[part]
                    targets[slot, : counts[user]] = examples.targets[part]
                yield _Chunk(users, counts[users], ids, targets)

    # Personal parameters lie beside each other in a device's row, as differences from what devices begin
    # with: a row of zeros is that of a device that has never taken part.

    def _personal_of(self, state: State, local: Array | None, users: int) -> dict[str, Array]:
        """Return the personal parameters that devices begin with, [users, …] each."""
        found, first = {}, 0
        for name, shape in self._personal_shapes.items():
            found[name] = np.repeat(np.asarray(state[name], np.float32)[None], users, axis=0)
            if self.local_width and local is not None:
                size = math.prod(shape)
                found[name] += np.asarray(local[:, first : first + size], np.float32).reshape(users, *shape)
                first += size
        return found

    def _row_of(self, state: State, personal: Tensors) -> Array:
        rows = [
            (personal[name].numpy() - state[name]).reshape(len(personal[name]), -1) for name in self.personal
        ]
        return np.concatenate(rows, axis=1)

    @functools.cached_property
    def _columns(self) -> list[slice]:
        ends = np.cumsum([0, *self._row_widths.values()]).tolist()
        return [slice(first, end) for first, end in itertools.pairwise(ends)]

    def _padded(self, personal: Mapping[str, Array], users: Ints, torch: Any) -> Tensors:
        """Return the parameters of ``users`` for a whole chunk, the last of them standing for the rest."""
        rows = np.concatenate([users, np.repeat(users[-1:], CHUNK - len(users))])
        return {name: torch.from_numpy(values.take(rows, axis=0)) for name, values in personal.items()}

    def _start(self, state: State, personal: Mapping[str, Array], chunk: _Chunk) -> _Values:
        torch = torch_package()
        rows = np.minimum(chunk.ids, self.problem.n_items - 1)
        return _Values(
            {
                name: torch.from_numpy(np.repeat(np.asarray(state[name])[None], CHUNK, axis=0))
                for name in self._whole_shapes
            },
            {name: torch.from_numpy(state[name].take(rows, axis=0)) for name in self.item_rows},
            self._padded(personal, chunk.users, torch),
        )

    def _objective(
        self,
        shared: Tensors,
        tables: Tensors,
        personal: Tensors,
        ids: Tensor,
        items: Tensor,
        targets: Tensor,
        weights: Tensor,
    ) -> tuple[Tensor, Tensor]:
        """Return what a device minimises, and its mean loss."""
        torch = torch_package()
        known = {f"{name.rpartition('.')[0]}.ids": ids for name in self.item_rows}
        values = {**shared, **tables, **personal}
        prediction = torch.func.functional_call(self._device, {**values, **known}, (items,))
        mean = (self.loss(prediction, targets) * weights).sum()
        decay = self.settings.client.regularization
        if decay == 0.0:
            return mean, mean
        squares = [value.square().sum() for name, value in values.items() if not _is_bias(name)]
        return mean + 0.5 * decay * sum(squares), mean

    def _gradients(self, *blocks: int) -> Callable[..., Any]:
        """Return the gradients of a chunk's devices by some of the blocks of :class:`_Values`."""
        torch = torch_package()
        gradient = torch.func.grad_and_value(self._objective, argnums=blocks, has_aux=True)
        mapped: Callable[..., Any] = torch.func.vmap(gradient)
        return mapped

    @functools.cached_property
    def _forward(self) -> Callable[..., Any]:
        """What the module gives for a chunk of devices; tables of items are not copied for each."""
        torch = torch_package()

        def forward(whole: Tensors, tables: Tensors, personal: Tensors, items: Tensor) -> Any:
            return torch.func.functional_call(self._whole, {**whole, **tables, **personal}, (items,))

        mapped = torch.func.vmap(forward, in_dims=(0, None, 0, 0))

        def of_chunk(values: tuple[Tensors, Tensors], personal: Tensors, items: Tensor) -> Any:
            return mapped(*values, personal, items)

        return of_chunk

    def _tensors(self, state: State, torch: Any) -> tuple[Tensors, Tensors]:
        """Return what is whole, for each device of a chunk, and the tables of items, once."""
        whole = {
            name: torch.from_numpy(np.repeat(np.asarray(state[name])[None], CHUNK, axis=0))
            for name in self._whole_shapes
        }
        return whole, {name: torch.tensor(state[name]) for name in self.item_rows}

    def _batch(self, chunk: _Chunk, places: Ints) -> tuple[Tensor, ...]:
        """Return ids, items, targets and weights of the examples at ``places`` [CHUNK, b]; -1 for none."""
        torch = torch_package()
        there = places >= 0
        sizes = np.maximum(there.sum(axis=1, keepdims=True), 1)
        at = np.maximum(places, 0)
        weights = np.where(there, np.float32(1.0) / sizes.astype(np.float32), np.float32(0.0))
        items = np.minimum(np.take_along_axis(chunk.ids, at, axis=1), self.problem.n_items - 1)
        targets = np.take_along_axis(chunk.targets, at, axis=1)
        arrays = (chunk.ids, items, targets, weights.astype(np.float32))
        return tuple(torch.from_numpy(array) for array in arrays)

    def _personalised(self, start: _Values, chunk: _Chunk) -> _Values:
        """Return the values after the steps on the personal parameters alone."""
        steps = self.settings.personal_steps if self.personal else 0
        if steps == 0:
            return start
        batch = self._batch(chunk, _all_places(chunk))
        gradients = self._gradients(2)
        personal = start.personal
        for _ in range(steps):
            (found,), _ = gradients(start.shared, start.tables, personal, *batch)
            personal = _moved(personal, found, self.settings.personal_learning_rate)
        return start._replace(personal=personal)

    def _descended(
        self, start: _Values, chunk: _Chunk, keys: npt.NDArray[np.uint64], limits: Ints | None
    ) -> tuple[_Values, npt.NDArray[np.float32]]:
        """Take the client's steps; return the values after them, and the losses before the first, [CHUNK]."""
        torch = torch_package()
        client = self.settings.client
        rates = [client.learning_rate, client.learning_rate]
        if self.personal:
            rates.append(self.settings.personal_learning_rate)
        gradients = self._gradients(*range(len(rates)))
        point, before = start, None
        if isinstance(client, MiniBatches):
            everything = self._batch(chunk, _all_places(chunk))
            before = torch.func.vmap(self._objective)(*start, *everything)[1]
        for places, active in _steps(client, chunk, keys, limits):
            found, (_, losses) = gradients(*point, *self._batch(chunk, places))
            before = losses if before is None else before
            moved = [
                _moved(block, change, rate) for block, change, rate in zip(point, found, rates, strict=False)
            ]
            if not active.all():
                going = torch.from_numpy(active)
                moved = [_chosen(going, new, old) for new, old in zip(moved, point, strict=False)]
            point = _Values(*moved, *point[len(moved) :])
        return point, np.asarray(before)


@contextlib.contextmanager
def _traffic(torch: Any) -> Iterator[dict[str, npt.NDArray[np.float64]]]:
    """Count the operators that run: flops, bytes moved and written, launches, by kind of work."""
    from torch.utils._python_dispatch import TorchDispatchMode  # noqa: PLC0415
    from torch.utils.flop_counter import FlopCounterMode, flop_registry  # noqa: PLC0415

    count = {part: np.zeros(len(WORK_KINDS)) for part in ("flops", "moved", "written", "ops")}
    is_gather = re.compile(r"embedding|index|gather|searchsorted|take").search

    class Counter(TorchDispatchMode):  # type: ignore[misc]
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            result = func(*args, **(kwargs or {}))
            aliases = [one.alias_info for one in func._schema.returns]
            if any(one is not None and not one.is_write for one in aliases):
                return result  # a view moves nothing
            read, written = (
                [one for one in torch.utils._pytree.tree_leaves(side) if isinstance(one, torch.Tensor)]
                for side in ((args, kwargs), result)
            )
            kind = _GATHER if is_gather(str(func)) else _DENSE
            # A gather reads the rows that it writes, not the whole table.
            of_rows = 2 * sum(map(_nbytes, written))
            count["moved"][kind] += of_rows if kind == _GATHER else sum(map(_nbytes, (*read, *written)))
            count["written"][kind] += sum(map(_nbytes, written))
            count["ops"][kind] += 1.0
            if kind == _DENSE and func._overloadpacket not in flop_registry:
                count["flops"][kind] += max((one.numel() for one in (*read, *written)), default=0)
            return result

    with FlopCounterMode(display=False) as products, Counter():
        yield count
    count["flops"][_DENSE] += products.get_total_flops()


def _nbytes(tensor: Any) -> int:
    return int(tensor.numel() * tensor.element_size())


def _filled(counts: npt.ArrayLike) -> Ints:
    """Return the lengths that so many rows are filled up to."""
    return np.asarray(_ROW_SIZES[np.searchsorted(_ROW_SIZES, counts)])


def _is_bias(name: str) -> bool:
    return name.rpartition(".")[2] == "bias"


def _moved(values: Tensors, gradients: Tensors, rate: float) -> Tensors:
    return {name: value - rate * gradients[name] for name, value in values.items()}


def _chosen(going: Tensor, new: Tensors, old: Tensors) -> Tensors:
    """Return ``new`` for the devices that are ``going`` on, ``old`` for the others."""
    return {
        name: value.where(going.reshape(-1, *[1] * (value.dim() - 1)), old[name])
        for name, value in new.items()
    }


def _all_places(chunk: _Chunk) -> Ints:
    """Return the places of all examples of a chunk's devices, [CHUNK, rows]; -1 where there is none."""
    places = np.full(chunk.ids.shape, -1, np.int64)
    for slot, count in enumerate(chunk.counts.tolist()):
        places[slot, :count] = np.arange(count)
    return places


def _steps(
    client: GradientSteps | MiniBatches, chunk: _Chunk, keys: npt.NDArray[np.uint64], limits: Ints | None
) -> Iterator[tuple[Ints, npt.NDArray[np.bool_]]]:
    """Yield, for each step, the places of its examples, [CHUNK, b], and which devices take it, [CHUNK].

    ``keys`` uint64 and ``limits`` int64 of the chunk's users.
    """
    most = step_counts(client, chunk.counts)
    allowed = np.zeros(CHUNK, np.int64)
    allowed[: len(most)] = most if limits is None else np.minimum(most, limits)
    if isinstance(client, GradientSteps):
        places = _all_places(chunk)
        for step in range(client.steps):
            yield places, allowed > step
        return
    indptr = np.concatenate([[0], np.cumsum(chunk.counts)])
    length = min(int(_filled(client.batch_size)), chunk.ids.shape[1])
    passes = most // client.epochs
    orders = [shuffled_ranks(indptr, keys, _ORDER_DRAW, epoch) for epoch in range(client.epochs)]
    for step in range(int(allowed.max(initial=0))):
        places = np.full((CHUNK, length), -1, np.int64)
        for slot, each in enumerate(passes.tolist()):
            if step < allowed[slot]:
                epoch, batch = divmod(step, each)
                ranks = orders[epoch][indptr[slot] : indptr[slot + 1]]
                chosen = np.flatnonzero(ranks // client.batch_size == batch)
                places[slot, : len(chosen)] = chosen
        yield places, allowed > step
