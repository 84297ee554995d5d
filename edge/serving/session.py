"""Running model files through onnxruntime on one thread, and what that takes on this host.

Times and bytes here are measured, never simulated.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import psutil

from edge.serving.errors import ModelFileError

Arrays = Mapping[str, npt.NDArray[Any]]


@dataclass(frozen=True, slots=True, eq=False)
class Inference:
    """Outputs of one call by name, and the wall time that it took here."""

    outputs: Arrays
    latency_s: float


@dataclass(frozen=True, slots=True, eq=False)
class RoundInference:
    """One graph run with the weights of n devices.

    Attributes
    ----------
    scores : float32 [n, items].
    latency_s : wall time of each call, float64 [n].
    memory_bytes : by how much this process grew from before the session was opened to after the last call,
        without ``scores``; at least 0.
    """

    scores: npt.NDArray[np.float32]
    latency_s: npt.NDArray[np.float64]
    memory_bytes: int


class Session:
    """A model in onnxruntime: one thread, on the processor, without an arena that keeps freed memory.

    Parameters
    ----------
    contents : a serialised model of recfleet's own, or one that :mod:`edge.serving.loading` has checked.

    Attributes
    ----------
    memory_bytes : by how much this process grew when the session was opened; 0 if it did not.
    opening_s : how long that took.

    Raises
    ------
    ModelFileError
        If onnxruntime refuses the model.
    """

    def __init__(self, contents: bytes) -> None:
        runtime = _runtime()
        options = runtime.SessionOptions()
        options.intra_op_num_threads = 1
        options.inter_op_num_threads = 1
        options.enable_cpu_mem_arena = False
        options.log_severity_level = 4
        options.add_session_config_entry("session.load_model_format", "ONNX")
        before_bytes, before_s = _resident_bytes(), time.perf_counter()
        try:
            self._session = runtime.InferenceSession(
                contents, options, providers=["CPUExecutionProvider"], enable_fallback=0
            )
        except Exception as error:  # onnxruntime has no common base for what it raises
            raise ModelFileError(f"onnxruntime refuses the model: {error}") from error
        self.opening_s = time.perf_counter() - before_s
        self.memory_bytes = max(0, _resident_bytes() - before_bytes)
        self._names = [output.name for output in self._session.get_outputs()]

    def run(self, inputs: Arrays) -> Inference:
        """Run the model once.

        Raises
        ------
        ModelFileError
            If onnxruntime refuses the inputs or fails, for example on an item outside the catalogue.
        """
        before_s = time.perf_counter()
        try:
            outputs = self._session.run(self._names, dict(inputs))
        except Exception as error:  # as above
            raise ModelFileError(f"onnxruntime cannot run the model on these inputs: {error}") from error
        latency_s = time.perf_counter() - before_s
        return Inference(dict(zip(self._names, outputs, strict=True)), latency_s)


def run_round(contents: bytes, items: npt.NDArray[np.int64], stacked: Arrays) -> RoundInference:
    """Score ``items`` with the masks of a round's devices, in one session whose weights are inputs.

    Parameters
    ----------
    contents : from :func:`edge.serving.mask_graph.mask_model` with ``weights_as_inputs`` and features inside.
    items : int64 [k].
    stacked : for each weight, float32 [n, …], a device in each row.

    Raises
    ------
    ModelFileError
        As :class:`Session`.
    """
    (devices,) = {len(array) for array in stacked.values()}
    scores = np.zeros((devices, len(items)), np.float32)
    # Written once, so that its pages are counted before and not as the session's.
    scores.fill(np.nan)
    latency_s = np.empty(devices)
    _runtime()
    before_bytes = _resident_bytes()
    session = Session(contents)
    for device in range(devices):
        weights = {name: np.asarray(array[device]) for name, array in stacked.items()}
        found = session.run({"items": items, **weights})
        scores[device] = found.outputs["scores"]
        latency_s[device] = found.latency_s
    return RoundInference(scores, latency_s, max(0, _resident_bytes() - before_bytes))


def _runtime() -> Any:
    # Imported when it is needed: it takes 150 ms, and most verbs of the command never run a model.
    import onnxruntime  # noqa: PLC0415

    return onnxruntime


def _resident_bytes() -> int:
    resident: int = psutil.Process().memory_info().rss
    return resident
