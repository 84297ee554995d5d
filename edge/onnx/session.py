"""Running model files through onnxruntime on one thread, and what that takes on this host.

Times and bytes here are measured, never simulated.
"""

from __future__ import annotations

import ctypes
import itertools
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import psutil

from edge.core.errors import ModelFileError

Arrays = Mapping[str, npt.NDArray[Any]]


@dataclass(frozen=True, slots=True, eq=False)
class ModelCall:
    """Outputs of one call by name, and the wall time that it took here."""

    outputs: Arrays
    latency_s: float


@dataclass(frozen=True, slots=True, eq=False)
class RoundInference:
    """A call for each of n devices.

    Attributes
    ----------
    outputs : by name, [n, …]; a device in each row.
    latency_s : wall time of each call, float64 [n].
    opening_s : how long opening the session of each device took, float64 [n].
    memory_bytes : by how much this process grew when that was opened, int64 [n].
    """

    outputs: Arrays
    latency_s: npt.NDArray[np.float64]
    opening_s: npt.NDArray[np.float64]
    memory_bytes: npt.NDArray[np.int64]


class OnnxSession:
    """A model in onnxruntime: one thread, on the processor, without an arena that keeps freed memory.

    Parameters
    ----------
    contents : a serialised model of recfleet's own, or one that :mod:`edge.onnx.loading` has checked.

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

    def run(self, inputs: Arrays) -> ModelCall:
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
        return ModelCall(dict(zip(self._names, outputs, strict=True)), latency_s)


def run_round(
    sessions: OnnxSession | Iterable[bytes],
    stacked: Arrays,
    *,
    shared: Arrays | None = None,
    ragged: Mapping[str, tuple[npt.NDArray[np.int64], npt.NDArray[Any]]] | None = None,
) -> RoundInference:
    """Run a round's devices one after another, in a session for all of them or one for each.

    Parameters
    ----------
    sessions : the session of a graph whose weights are inputs; or the model files of the devices, each of
        which gets a session of its own. Those are closed together when all have run, and what they leave is
        given back: memory that the next one could use again would be no growth.
    stacked : inputs that are alike for all devices, [n, …], a device in each row; {} without.
    shared : inputs that are the same for every device.
    ragged : inputs that differ in length: offsets int64 [n + 1], and the values of all devices together.

    Raises
    ------
    ModelFileError
        As :class:`OnnxSession` and its ``run``.
    ValueError
        For inputs of different numbers of devices, or none.
    """
    shared, ragged = shared or {}, ragged or {}
    counts = {len(array) for array in stacked.values()} | {len(ends) - 1 for ends, _ in ragged.values()}
    if len(counts) != 1 or counts == {0}:
        raise ValueError(f"inputs of {sorted(counts)} devices; give one number, 1 or more")
    (devices,) = counts
    edges = {name: ends.tolist() for name, (ends, _) in ragged.items()}
    each = itertools.repeat(sessions) if isinstance(sessions, OnnxSession) else map(OnnxSession, sessions)
    if not isinstance(sessions, OnnxSession):
        _give_back()
    outputs: dict[str, npt.NDArray[Any]] = {}
    latency_s, opening_s = np.empty(devices), np.empty(devices)
    memory_bytes = np.empty(devices, np.int64)
    opened: list[OnnxSession] = []
    for device, session in zip(range(devices), each, strict=False):
        opened.append(session)
        found = session.run(
            {
                **shared,
                **{name: np.asarray(array[device]) for name, array in stacked.items()},
                **{
                    name: values[edges[name][device] : edges[name][device + 1]]
                    for name, (_, values) in ragged.items()
                },
            }
        )
        for name, output in found.outputs.items():
            if device == 0:
                outputs[name] = np.empty((devices, *output.shape), output.dtype)
            outputs[name][device] = output
        latency_s[device] = found.latency_s
        opening_s[device] = session.opening_s
        memory_bytes[device] = session.memory_bytes
    if len(opened) != devices:
        raise ValueError(f"models of {len(opened)} devices for inputs of {devices}")
    return RoundInference(outputs, latency_s, opening_s, memory_bytes)


def _runtime() -> Any:
    # Imported when it is needed: it takes 150 ms, and most verbs of the command never run a model.
    import onnxruntime  # noqa: PLC0415

    return onnxruntime


def _give_back() -> None:
    """Return freed memory to the system where the C library can (glibc); elsewhere nothing happens."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


def _resident_bytes() -> int:
    resident: int = psutil.Process().memory_info().rss
    return resident
