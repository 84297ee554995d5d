"""The dropout matrix: a secure round struck at every stage, in every way, by few and by too many.

``PYTHONPATH=.:tests/runs python tests/runs/dropout_matrix.py`` rewrites ``docs/dropout-matrix.md``.
"""

from __future__ import annotations

import itertools
import tempfile
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from unittest.mock import patch

import numpy as np
from run_helpers import rows_of, run_text
from secure_helpers import IDEAL_WIRE, secure

from coordinator.engine.training import Training
from coordinator.scenario.errors import ScenarioError
from edge.learning.updates import Aggregate, ClientUpdate
from edge.secagg.masking import MaskingParticipant

DOCUMENT = Path(__file__).parents[2] / "docs" / "dropout-matrix.md"

DEVICES = 10
THRESHOLD = 7
"""Shares that rebuild a secret, and the fewest devices in a sum."""
STRUCK = {"under": 2, "at": 3, "over": 4}
"""How many devices are struck: fewer than may be, just as many, and one more."""
STAGES = (
    "invite",
    "download",
    "compute",
    "advertise-keys",
    "share-keys",
    "masked-input",
    "unmask",
    "acknowledge",
)
KINDS = {
    "vanish": "vanish: {}",
    "reset": "reset: {}",
    "late": "late: {by: 100 s}",
    "duplicate": "duplicate: {}",
    "corrupt": "corrupt: {}",
}
CELLS = tuple(itertools.product(KINDS, STAGES, STRUCK))


@dataclass(frozen=True)
class Cell:
    """How a round ended that was struck."""

    text: str
    """As the document has it."""
    in_sum: tuple[int, ...] = ()
    """The devices whose updates were applied."""
    failure: str = ""
    """The name of the error that ended the sum, or what the check of the scenario says."""
    sum_error: int | None = None
    """Largest difference between the sum and that of the oracle, in units of the ring."""
    rounding_error: float | None = None
    """The same against the plain sum of the updates of those in it, as multiple of what rounding allows."""
    struck: int = 0
    """How many devices the fault struck."""


def scenario(kind: str, stage: str, level: str) -> str:
    """Return the scenario of a cell."""
    fault = f"{{name: it, {KINDS[kind]}, at_stage: {stage}, on: {{fraction: {STRUCK[level] * 10}%}}}}"
    return secure(
        f"mode: secagg, neighbours: {DEVICES - 1}, threshold: {THRESHOLD}, min_contributors: {THRESHOLD}",
        rounds=f"count: 1, cohort: {DEVICES}, quorum: {THRESHOLD}, deadline: 60 s",
        fleet=IDEAL_WIRE,
        data="source: synthetic-ratings, users: 40, items: 30, ratings_per_user: 8",
        more=f"faults: [{fault}]\n",
    )


def run_cell(folder: Path, kind: str, stage: str, level: str) -> Cell:
    """Run the scenario of a cell, beside an oracle that sees every update."""
    updates: dict[int, ClientUpdate] = {}
    sums: list[Aggregate] = []
    bounds: dict[str, float] = {}
    begin, aggregate = MaskingParticipant.begin, Training._aggregate

    def begin_watched(self: MaskingParticipant, update: ClientUpdate) -> object:
        updates[self.client.device] = update
        bounds.update({name: quantizer.error_bound for name, quantizer in self._config.quantizers.items()})
        return begin(self, update)

    def aggregate_watched(self: Training, *arguments: object) -> Aggregate:
        sums.append(aggregate(self, *arguments))  # type: ignore[arg-type]
        return sums[-1]

    try:
        with (
            patch.object(MaskingParticipant, "begin", begin_watched),
            patch.object(Training, "_aggregate", aggregate_watched),
        ):
            outcome = run_text(folder, scenario(kind, stage, level))
    except ScenarioError as error:
        return Cell("refused", failure=str(error))
    (round_,) = rows_of(outcome, "rounds")
    struck = len({row["device"] for row in rows_of(outcome, "faults")})
    if round_["outcome"] != "completed":
        stages = ("advertise-keys", "share-keys", "masked-input", "unmask")
        last = [name for name in stages if round_[f"{name}_s"] is not None][-1]
        failure = round_["secagg_failure"]
        return Cell(f"abort in {last}: {failure}", failure=failure, struck=struck)
    rows = rows_of(outcome, "device_rounds")
    members = tuple(sorted(row["device"] for row in rows if row["outcome"] == "completed"))
    (total,) = sums
    worst = 0.0
    for name, array in total.sums.items():
        plain = np.sum([updates[device].arrays[name].astype(np.float64) for device in members], axis=0)
        worst = max(worst, float(np.abs(array - plain).max()) / bounds[name])
    assert total.weight == sum(updates[device].weight for device in members)
    assert total.examples == sum(updates[device].examples for device in members)
    return Cell(
        f"sum of {len(members)}",
        in_sum=members,
        sum_error=round_["secagg_sum_error"],
        rounding_error=worst,
        struck=struck,
    )


def row_of(kind: str, stage: str, texts: list[str]) -> str:
    """Return a row of the table."""
    return f"| `{kind}` | {stage} | {' | '.join(texts)} |"


TEXT = f"""
Generated by `PYTHONPATH=.:tests/runs python tests/runs/dropout_matrix.py`;
`tests/runs/test_dropout_matrix.py` runs every cell and compares.

{DEVICES} devices sum their updates by double masking (`secagg`, real cryptography). {THRESHOLD} shares
rebuild a secret, and no sum over fewer than {THRESHOLD} devices is revealed. A fault, pinned to a stage,
strikes {STRUCK["under"]} devices (*under* what the threshold allows), {STRUCK["at"]} (*at* it) or
{STRUCK["over"]} (*over* it). Frames that are late come 100 s late; the first stage ends after 60 s, every
other one after 15 s.

Every cell is an exact sum, of as many updates as it says, or an abort with a name. A sum is compared with
that of an oracle that adds what its members put in, to the last unit of the ring, and with the plain sum of
their updates. A device that goes away after its input has arrived is in the sum all the same: the others
rebuild what takes its mask off. *Refused* are scenarios that ask for what cannot be: nothing is sent while a
device computes.
"""
HEAD = "\n\n".join(
    [
        "# Dropout matrix",
        *(textwrap.fill(text.strip(), 120, break_on_hyphens=False) for text in TEXT.split("\n\n")),
        "| Fault | Stage | Under | At | Over |\n|---|---|---|---|---|\n",
    ]
)
"""The document above its rows."""


def lines(cells: dict[tuple[str, str, str], Cell]) -> Iterator[str]:
    """Yield the rows of the table."""
    for kind, stage in itertools.product(KINDS, STAGES):
        yield row_of(kind, stage, [cells[kind, stage, level].text for level in STRUCK])


def main() -> None:
    """Run every cell and write the document."""
    cells = {}
    for cell in CELLS:
        with tempfile.TemporaryDirectory() as folder:
            cells[cell] = run_cell(Path(folder), *cell)
    DOCUMENT.write_text(HEAD + "\n".join(lines(cells)) + "\n")


if __name__ == "__main__":
    main()
