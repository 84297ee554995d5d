"""What has been tried, on disk: a study of Optuna in one file, to which every trial is added when it ends.

A trial that is cut short leaves no line, so a tuning that was killed has lost what was running and no more.
``optuna-dashboard tuning.journal`` shows the study; trials that miss a threshold are pruned ones there.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any, Final

from coordinator.tuning.goal import Goal, TuneError
from coordinator.tuning.space import Point, Space, ValueList
from edge.core.errors import MissingExtraError

__all__ = ["JOURNAL", "Ended", "TrialJournal"]

JOURNAL: Final = "tuning.journal"
_STUDY: Final = "tuning"
_IDENTITY: Final = "identity"
_LOCK_SUFFIX: Final = ".lock"


@dataclass(frozen=True, slots=True)
class Ended:
    """A trial that has ended.

    Attributes
    ----------
    point : its settings.
    how : ``held``; ``missed`` a threshold; ``ended early`` by one; ``refused``; ``no-round-completed`` or
        ``diverged``; ``unobserved``, the figure was.
    value : the figure, in base units; None where it is not known, or of a run that was ended early.
    distances : to each threshold, see :func:`~coordinator.tuning.goal.distances`.
    error : why it did not run, in one line.
    runs : seed and name of the directory of each run.
    """

    point: Point
    how: str
    value: float | None
    distances: Mapping[str, float]
    error: str | None = None
    runs: tuple[tuple[int, str], ...] = ()


def _optuna() -> ModuleType:
    try:
        import optuna  # noqa: PLC0415
    except ImportError as error:
        raise MissingExtraError("recfleet tune needs optuna: pip install 'recfleet[tune]'") from error
    found: ModuleType = optuna
    return found


class TrialJournal:
    """The trials of a tuning that have ended, kept in a file.

    Parameters
    ----------
    directory : of the tuning; the caller holds it alone.
    space, goal : of the tuning.
    identity : what makes trials comparable, by name: the file of another tuning is refused.

    Raises
    ------
    MissingExtraError : Optuna is not installed.
    TuneError : the file is that of another tuning, or damaged.
    """

    def __init__(self, directory: Path, space: Space, goal: Goal, identity: Mapping[str, str]) -> None:
        self._optuna = optuna = _optuna()
        self._space = space
        file = directory / JOURNAL
        _mend(file)
        try:
            backend = optuna.storages.journal.JournalFileBackend(str(file))
            said = optuna.logging.get_verbosity()
            optuna.logging.set_verbosity(optuna.logging.WARNING)
            try:
                self._study = optuna.create_study(
                    storage=optuna.storages.JournalStorage(backend),
                    study_name=_STUDY,
                    direction="maximize" if goal.maximise else "minimize",
                    load_if_exists=True,
                )
            finally:
                optuna.logging.set_verbosity(said)
        except (ValueError, KeyError) as error:
            raise TuneError(f"{file}: is damaged ({error}); give another --out, or remove it") from error
        before = self._study.user_attrs.get(_IDENTITY)
        if before is None:
            self._study.set_user_attr(_IDENTITY, dict(identity))
        elif before != dict(identity):
            other = ", ".join(name for name in identity if before.get(name) != identity[name])
            message = f"holds a tuning with another {other}; give another --out, or remove the directory"
            raise TuneError(f"{directory}: {message}")

    def add(self, ended: Ended) -> None:
        """Write a trial that has ended."""
        optuna, state = self._optuna, self._optuna.trial.TrialState
        distributions: dict[str, Any] = {}
        parameters: dict[str, Any] = {}
        for axis, value in zip(self._space.axes, ended.point, strict=True):
            values = axis.values
            if isinstance(values, ValueList):
                distributions[axis.name] = optuna.distributions.CategoricalDistribution(values.values)
                parameters[axis.name] = values.values[int(value)]
            elif values.whole:
                distributions[axis.name] = optuna.distributions.IntDistribution(
                    int(values.low), int(values.high), log=values.logarithmic
                )
                parameters[axis.name] = int(value)
            else:
                distributions[axis.name] = optuna.distributions.FloatDistribution(
                    values.low, values.high, log=values.logarithmic
                )
                parameters[axis.name] = value
        held = ended.how == "held"
        self._study.add_trial(
            optuna.trial.create_trial(
                state=state.COMPLETE if held else state.PRUNED,
                value=ended.value if held else None,
                params=parameters,
                distributions=distributions,
                user_attrs={
                    "how": ended.how,
                    "value": ended.value,
                    "distances": dict(ended.distances),
                    "error": ended.error,
                    "runs": [list(run) for run in ended.runs],
                },
            )
        )

    def ended(self) -> list[Ended]:
        """Return all trials, in the order in which they have ended."""
        found = []
        for trial in self._study.get_trials(deepcopy=False):
            attrs: Mapping[str, Any] = trial.user_attrs
            point = tuple(self._value(axis.values, trial.params[axis.name]) for axis in self._space.axes)
            runs = tuple((int(seed), str(name)) for seed, name in attrs["runs"])
            found.append(Ended(point, attrs["how"], attrs["value"], attrs["distances"], attrs["error"], runs))
        return found

    @staticmethod
    def _value(values: Any, parameter: Any) -> float:
        return float(values.values.index(parameter)) if isinstance(values, ValueList) else float(parameter)


def _mend(file: Path) -> None:
    """Remove what a killed process has left: a lock, and half a line at the end."""
    file.with_name(file.name + _LOCK_SUFFIX).unlink(missing_ok=True)
    if file.exists():
        written = file.read_bytes()
        whole = written[: written.rfind(b"\n") + 1]
        if whole != written:
            file.write_bytes(whole)
