"""Every cell of the dropout matrix ends in the exact sum of whom it should, or in the abort it should."""

from __future__ import annotations

from pathlib import Path

import pytest
from dropout_matrix import (
    CELLS,
    DEVICES,
    DOCUMENT,
    HEAD,
    KINDS,
    STAGES,
    STRUCK,
    THRESHOLD,
    row_of,
    run_cell,
)

LAST_OF_INPUT = STAGES.index("masked-input")
FAILURE = {"share-keys": "too-few-neighbours", "unmask": "too-few-survivors"}


def written() -> dict[tuple[str, str, str], str]:
    """Return what the document says, by cell."""
    found = {}
    for line in DOCUMENT.read_text().removeprefix(HEAD).splitlines():
        kind, stage, *texts = (part.strip(" `") for part in line.strip("|").split("|"))
        found.update({(kind, stage, level): text for level, text in zip(STRUCK, texts, strict=True)})
    return found


def test_the_document_has_every_cell_and_no_other() -> None:
    text = DOCUMENT.read_text()
    found = written()
    assert list(found) == list(CELLS)
    rows = [
        row_of(kind, stage, [found[kind, stage, n] for n in STRUCK]) for kind in KINDS for stage in STAGES
    ]
    assert text == HEAD + "\n".join(rows) + "\n"


@pytest.mark.few(4)
@pytest.mark.parametrize(("kind", "stage", "level"), CELLS)
def test_a_cell(kind: str, stage: str, level: str, tmp_path: Path) -> None:
    cell = run_cell(tmp_path, kind, stage, level)
    assert cell.text == written()[kind, stage, level]
    if stage == "compute" and kind in ("late", "duplicate", "corrupt"):
        assert f"{kind} cannot be pinned to 'compute': nothing is sent at it" in cell.failure
        assert "faults[0].at_stage" in cell.failure
        return
    # What must come of it follows from the protocol: who is lost before its input has come is not in the sum,
    # and who is lost later is, as long as enough are left to take the masks off.
    assert cell.struck == STRUCK[level]
    lost = 0 if kind == "duplicate" or stage == "acknowledge" else STRUCK[level]
    left = DEVICES - lost
    if left < THRESHOLD:
        assert cell.failure == FAILURE.get(stage, "too-few-contributors")
        assert cell.in_sum == ()
    else:
        assert cell.failure == ""
        assert len(cell.in_sum) == (left if STAGES.index(stage) <= LAST_OF_INPUT else DEVICES)
        assert cell.sum_error == 0
        assert cell.rounding_error is not None
        assert cell.rounding_error < 1.0
