"""Devices that run their own models in a run: through onnxruntime here, and as their profiles have it.

An inference stands outside the simulated time, like an evaluation: the sample is drawn from the whole fleet,
whoever is available, no round waits for it, and no battery pays for it. How long a call takes *on the device*
comes from its profile; how long it took *here*, and how far onnxruntime's scores are from the formula, is
measured.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from coordinator.engine.facts import Inferences
from coordinator.engine.fleet import Fleet
from coordinator.engine.workload import RatingWorkload
from coordinator.scenario.rounds_section import InferenceSection
from edge.core.errors import DivergedModelError
from edge.core.rng import hashed_bits, stream, stream_key
from edge.device.compute_model import compute_joules, task_seconds
from edge.learning.base import State
from edge.onnx.metadata import ModelInfo
from edge.onnx.parity import Tolerance, check_lists, check_rows
from edge.onnx.personal_models import personal_models
from edge.onnx.recommenders import Recommenders, blocks, recommender_model
from edge.onnx.session import OnnxSession, RoundInference, run_round
from edge.onnx.templates import Template, recommender_template
from edge.onnx.work import recommender_work

INFERENCE_CALL_S: Final = 1e-4
"""c_fw of the compute model: what a runtime spends on a call besides its operators. An assumption:
onnxruntime takes about 10 µs on a server core; phones ten times that."""
_SCORES_AT_ONCE: Final = 1 << 22
"""Scores that are kept until they have been compared, 16 MiB: they bound the memory of a large sample."""
_SCORES_COMPARED: Final = 1 << 17
"""Scores compared in one go: what lies between the steps of a comparison then stays in the cache."""

Ids = npt.NDArray[np.int64]
Ragged = tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]
"""Offsets int64 [n + 1], and the values of all devices, one after another."""


class DeviceInference:
    """Draws the devices, runs their models and checks every one of them.

    Parameters
    ----------
    section : what the scenario asks for.
    workload, fleet : the run's; one user a client.
    info : for the metadata of the models.
    seed : the run's seed.
    """

    def __init__(
        self, section: InferenceSection, workload: RatingWorkload, fleet: Fleet, info: ModelInfo, seed: int
    ) -> None:
        assert not workload.grouped, "the scenario was checked"
        self._section = section
        self._workload = workload
        self._fleet = fleet
        self._info = info
        self._seed = seed
        self._tolerance = Tolerance(section.tolerance, section.tolerance)
        self._client_key = stream_key(seed, "inference", "client")
        self._zeros_key = stream_key(seed, "inference", "zeros")
        self._noise_key = stream_key(seed, "inference", "compute")
        self._session: OnnxSession | None = None
        self._model_bytes = 0

    def run(self, state: State, round_number: int) -> Inferences:
        """Let a sample of devices run its models, made from ``state``, their ratings and what they keep.

        Raises
        ------
        ParityError
            For a model whose scores, or list, are not those of the formula; it names round and device. Where
            the model is not finite and nothing can be compared, it is a ``DivergedModelError``.
        ModelFileError
            If onnxruntime fails.
        """
        ids = self._sample(round_number)
        workload = self._workload
        users = workload.clients.users[ids]
        zeros = hashed_bits(self._zeros_key, ids, round_number)
        batch = workload.gather(workload.split.train, users, zeros)
        keys = hashed_bits(self._client_key, ids, round_number)
        models = personal_models(workload.algorithm, state, batch, keys, workload.rows_of(users, state))
        where = f"after round {round_number}, device "
        _check_finite(models.own().values(), ids, where, "its own parameters")
        known = workload.split.train.gather(users)
        rated = (known.indptr, known.items.astype(np.int64))
        parts = []
        absolute, relative = np.empty(len(ids)), np.empty(len(ids))
        for rows, part in blocks(models, max(1, _SCORES_AT_ONCE // models.n_items)):
            theirs = _cut(rated, rows)
            found = self._call(part, theirs)
            parts.append(found)
            absolute[rows], relative[rows] = self._compare(part, theirs, found, ids[rows], where)
        counts = known.counts
        top = self._section.top
        work = recommender_work(models.work(), models.n_items, top, counts, self._model_bytes)
        fleet, code = self._fleet, self._fleet.device_class[ids]
        latency_s = task_seconds(
            work,
            fleet.compute_specs.take(code),
            framework_step_s=INFERENCE_CALL_S,
            busy_s=np.zeros(len(ids)),
            noise_key=self._noise_key,
            device_ids=ids,
            task=round_number,
        )
        return Inferences(
            device=ids,
            device_class=code,
            network=fleet.network[ids],
            items=models.n_items,
            rated=counts,
            model_bytes=self._model_bytes,
            latency_s=latency_s,
            energy_j=compute_joules(fleet.active_power_w[code], latency_s),
            memory_bytes=work.memory_bytes,
            host_latency_s=np.concatenate([part.latency_s for part in parts]),
            host_opening_s=np.concatenate([part.opening_s for part in parts]),
            host_session_bytes=np.concatenate([part.memory_bytes for part in parts]),
            max_absolute_error=absolute,
            max_relative_error=relative,
        )

    def _sample(self, round_number: int) -> Ids:
        generator = stream(self._seed, "inference", "sample", round_number)
        return np.sort(generator.choice(self._workload.n_clients, self._section.devices, replace=False))

    def _call(self, models: Recommenders, rated: Ragged) -> RoundInference:
        """Run the models of some devices, each on its own."""
        if self._section.sessions == "own":
            template = self._template(models)
            return run_round(template.patched_all(models.own()), {}, ragged={"rated": rated})
        if self._session is None:
            # What a device would hold has a size, too; it depends on shapes alone.
            self._template(models)
            graph = recommender_model(models, self._info, top=self._section.top, weights_as_inputs=True)
            self._session = OnnxSession(graph)
        return run_round(self._session, models.own(), shared=models.shared(), ragged={"rated": rated})

    def _template(self, models: Recommenders) -> Template:
        template = recommender_template(models, self._info, top=self._section.top)
        self._model_bytes = template.nbytes
        return template

    def _compare(
        self,
        models: Recommenders,
        rated: Ragged,
        found: RoundInference,
        ids: Ids,
        where: str,
    ) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
        """Return the largest errors of each device, absolute and relative; raise beyond the tolerance."""
        scores, lists = found.outputs["scores"], found.outputs["top_items"]
        absolute, relative = np.empty(len(ids)), np.empty(len(ids))
        for rows, part in blocks(models, max(1, _SCORES_COMPARED // models.n_items)):
            devices = ids[rows].tolist()
            expected = part.formula()
            with np.errstate(over="ignore"):  # what is beyond float32 is infinite in a device's model
                _check_finite((expected.astype(np.float32),), ids[rows], where, "its scores")
            errors = check_rows(
                expected,
                scores[rows],
                self._tolerance,
                _names(where, devices, "the score of item {0}"),
            )
            absolute[rows], relative[rows] = errors.max_absolute, errors.max_relative
            indptr, left_out = _cut(rated, rows)
            owners = np.repeat(np.arange(len(devices)), np.diff(indptr))
            check_lists(
                expected,
                lists[rows],
                (owners, left_out),
                self._tolerance,
                _names(where, devices, "place {0} of its list, counted from 0,"),
            )
        return absolute, relative


def _check_finite(arrays: Iterable[npt.NDArray[Any]], ids: Ids, where: str, what: str) -> None:
    """Raise ``DivergedModelError`` for arrays [n, …] of n devices that are not finite, naming the first."""
    for array in arrays:
        bad = ~np.isfinite(array.reshape(len(ids), -1)).all(axis=1)
        if bad.any():
            raise DivergedModelError(f"{where}{ids[bad.argmax()]}: {what} are not finite")


def _names(where: str, devices: list[int], what: str) -> Callable[[tuple[int, ...]], str]:
    """Return what names the place (row, column) of a table with a device in each row."""
    return lambda place: f"{where}{devices[place[0]]}: {what.format(place[1])}"


def _cut(ragged: Ragged, rows: slice) -> Ragged:
    """Return what belongs to some rows."""
    indptr, values = ragged
    edges = indptr[rows.start : rows.stop + 1]
    return edges - edges[0], values[edges[0] : edges[-1]]
