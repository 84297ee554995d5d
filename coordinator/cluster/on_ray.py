"""Workers as actors of a Ray cluster, one that runs already or one that is started here.

Nothing is put into Ray's object store but what is in the calls, and of these what is above 100 kB. A worker
has the folder of the process that calls it, and recfleet's version: paths mean the same on every node.
"""

from __future__ import annotations

import os
import re
import signal
import socket
import sys
from collections.abc import Collection, Mapping, Sequence
from typing import Any, Final

from coordinator.cluster.base import Call, Cluster, ClusterError, Worker, WorkerLostError
from coordinator.cluster.hosting import CallOutcome, HostedWorker, unpack
from coordinator.cluster.interrupts import handles_signals
from coordinator.engine.host import host_facts
from edge.core import plugins
from edge.core.errors import MissingExtraError

_PATIENCE_S: Final = 10.0
"""How long a worker that has been asked to end is waited for before it is killed."""
_STORE_BYTES: Final = 1_000_000_000
"""Of the object store, where Ray is started here: it holds calls above 100 kB, never data."""
_INLINE_BYTES: Final = 100_000
"""Ray puts larger arguments into the object store: those of several calls are put there once."""
_PASSED: Final = ("BLIS_", "MKL_", "OMP_", "OPENBLAS_", "RECFLEET_", "VECLIB_")
"""Beginnings of variables that workers take over: where data are, and threads of BLAS."""
_CONTROL: Final = "control"


class _Actor:
    """A worker, where Ray has it live."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._hosted = HostedWorker()

    def __repr__(self) -> str:
        """Return what Ray writes before each line of it."""
        return self._name

    def make(
        self, made_by: bytes, given: Sequence[str], folder: str, version: str, path: Sequence[str]
    ) -> bytes:
        """Make the worker; return the outcome, pickled.

        Parameters
        ----------
        made_by, given : as :meth:`HostedWorker.make` has them.
        folder, version, path : the folder, recfleet's version and ``sys.path`` of the calling process.
        """
        try:
            _settle(self._name, folder, version)
        except ClusterError as error:
            return self._hosted.refuse(error)
        sys.path += [entry for entry in path if entry not in sys.path]
        return self._hosted.make(made_by, given)

    def answer(self, request: bytes) -> bytes:
        """Do a call; return the outcome, pickled."""
        return self._hosted.answer(request)

    def interrupt(self) -> None:
        """Interrupt the worker."""
        self._hosted.interrupt()


def _settle(name: str, folder: str, version: str) -> None:
    """Go to a folder, if this node has it and recfleet in that version; raise ClusterError."""
    own, node = str(host_facts()["recfleet"]), os.uname().nodename
    if own != version:
        raise ClusterError(f"{name}: {node} has recfleet {own}; install {version}, the version that calls it")
    try:
        os.chdir(folder)
    except OSError as error:
        raise ClusterError(
            f"{name}: {folder}: {error.strerror} on {node}; every node of a cluster needs the folder that "
            "you start from, by the same path"
        ) from error


def share_of_processors(processors: Sequence[float], workers: int) -> float:
    """Return the part of a processor that a worker reserves: 1, or the most of which all find a place.

    ``processors`` are those of each node; a worker lies on one node. 0 where no node has any.
    """
    shares = {1.0, *(of / count for of in processors if of > 0 for count in range(1, workers + 1))}
    for share in sorted((share for share in shares if share <= 1.0), reverse=True):
        if sum(int(of / share + 1e-9) for of in processors) >= workers:
            # Ray counts in ten-thousandths.
            return int(share * 10_000) / 10_000
    return 0.0


class RayCluster(Cluster):
    """Starts workers as actors of Ray.

    Parameters
    ----------
    limit : most workers at a time; None: as many as the cluster has processors.
    address : of a cluster that runs, such as ``10.0.0.1:6379``, or ``auto``. By default that of the variable
        RAY_ADDRESS; without one, Ray is started on this host, and ended with the cluster. A process that is
        connected to one already uses that.

    Raises
    ------
    MissingExtraError : Ray is not installed.
    ClusterError : there is no cluster at the address, or none can be started.
    """

    def __init__(self, limit: int | None, address: str | None = None) -> None:
        try:
            import ray  # noqa: PLC0415
        except ImportError as error:
            raise MissingExtraError("--engine ray needs Ray: pip install 'recfleet[ray]'") from error
        self._ray: Any = ray
        self._connected = not ray.is_initialized()
        if self._connected:
            self._connect(limit, address or os.environ.get("RAY_ADDRESS"))
        processors = [node["Resources"].get("CPU", 0.0) for node in ray.nodes() if node["Alive"]]
        super().__init__(limit or max(1, int(sum(processors))))
        self._share = share_of_processors(processors, self.limit)
        self._class = ray.remote(concurrency_groups={_CONTROL: 1})(_Actor)
        self._actors: dict[Worker, Any] = {}
        self._refs: dict[Call, Any] = {}

    def _connect(self, limit: int | None, address: str | None) -> None:
        settings: dict[str, Any] = {"address": address}
        if address is None:
            # Ray reports its use to its makers unless it is told not to.
            os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
            settings = {
                "address": "local", "num_cpus": limit, "include_dashboard": False,
                "object_store_memory": _STORE_BYTES,
            }  # fmt: skip
        terminate = signal.getsignal(signal.SIGTERM)
        try:
            if address is not None:
                _knock(address)
            self._ray.init(**settings, logging_level="ERROR")
        except (OSError, RuntimeError, ValueError) as error:
            first_line = str(error).partition("\n")[0]
            raise ClusterError(
                f"no Ray cluster at {address!r} that takes this process: {first_line}; start one with "
                "'ray start --head'; if it asks for a token, set RAY_AUTH_MODE=token and RAY_AUTH_TOKEN_PATH"
                if address is not None
                else f"Ray cannot be started: {first_line}"
            ) from error
        finally:
            if handles_signals():
                # Ray ends the process; what goes on shall end in order.
                signal.signal(signal.SIGTERM, terminate)

    def _start(
        self, worker: Worker, made_by: bytes, environment: Mapping[str, str], *, reserves: bool
    ) -> None:
        passed = {name: value for name, value in os.environ.items() if name.startswith(_PASSED)}
        actor = self._class.options(
            num_cpus=self._share if reserves else 0,
            max_restarts=0,
            scheduling_strategy="SPREAD",
            runtime_env={"env_vars": {**passed, **environment}},
        ).remote(worker.name)
        self._actors[worker] = actor
        here = os.getcwd(), str(host_facts()["recfleet"]), sys.path
        self._refs[worker.started] = actor.make.remote(made_by, plugins.loaded(), *here)

    def _submit(self, calls: Sequence[Call], request: bytes) -> None:
        given = self._ray.put(request) if len(calls) > 1 and len(request) > _INLINE_BYTES else request
        for call in calls:
            self._refs[call] = self._actors[call.worker].answer.remote(given)

    def wait(self, calls: Collection[Call]) -> list[Call]:
        """Return those of ``calls`` that have ended, once one has."""
        while not any(call.done for call in calls):
            waiting = {self._refs[call]: call for call in calls}
            with self.interrupts.strike():
                self._ray.wait(list(waiting), num_returns=1)
            self._receive(waiting)
        return [call for call in calls if call.done]

    def _receive(self, waiting: Mapping[Any, Call]) -> None:
        """Take what has been returned; a worker whose call has ended in another way is lost."""
        errors = self._ray.exceptions
        ended, _ = self._ray.wait(list(waiting), num_returns=len(waiting), timeout=0)
        lost: dict[Worker, str] = {}
        for ref in ended:
            call = waiting[ref]
            try:
                call.end(unpack(self._ray.get(ref)))
            except (errors.RayActorError, errors.ObjectLostError, errors.WorkerCrashedError) as error:
                lost.setdefault(call.worker, _how(error))
            else:
                del self._refs[call]
        for worker, how in lost.items():
            self._lose(worker, how)

    def _lose(self, worker: Worker, how: str) -> None:
        """End the calls of a worker that have not been returned from."""
        worker.lost = how
        # One that is out of reach may be alive.
        self._ray.kill(self._actors.pop(worker))
        for call in [call for call in self._refs if call.worker is worker]:
            del self._refs[call]
            call.end(CallOutcome(error=WorkerLostError(worker.name, how)))

    def interrupt(self, worker: Worker) -> None:
        """Ask a worker to end its calls in order; do not wait."""
        if worker.lost is None:
            self._actors[worker].interrupt.options(concurrency_group=_CONTROL).remote()

    def _stop(self, workers: Sequence[Worker]) -> None:
        # One that has no place yet would not end.
        made = [worker for worker in workers if worker.started.done]
        ends = [self._actors[worker].__ray_terminate__.remote() for worker in made]
        if ends:
            self._ray.wait(ends, num_returns=len(ends), timeout=_PATIENCE_S)
        for worker in workers:
            self._lose(worker, "stopped")

    def close(self) -> None:
        """End all workers, and what was started or connected for them."""
        super().close()
        if self._connected:
            self._ray.shutdown()


def _knock(address: str) -> None:
    """Open and close a TCP connection to ``host:port``, as Ray itself tries for many minutes.

    Raises
    ------
    OSError : no process listens there.
    """
    found = re.fullmatch(r"\[?([^/]+?)\]?:(\d+)", address)
    if found is not None:
        socket.create_connection((found[1], int(found[2])), timeout=_PATIENCE_S).close()


def _how(error: Exception) -> str:
    """Return how Ray says that an actor was lost, in a sentence."""
    said = " ".join(str(error).split())
    found = re.search(r"Worker exit detail: (.+?)(?:\. |\.?$)", said)
    return found[1] if found is not None else said.partition(". ")[0]
