"""Digests of runs at the last change of behaviour: ``golden.py`` records those of this host's numerics anew.

The file has an entry for each host's numerics (versions, CPU, BLAS) that digests were recorded on. A swarm
scenario's entry begins with the hash of its text, so that another generator is not taken for another engine:
what other hosts have of another text is dropped.
"""

from __future__ import annotations

import hashlib
import json
import tempfile
from pathlib import Path
from typing import Any, Final

from shipped_runs import NEEDS_DATA, SHORTENED, Variant, data_folder, run_apart

from coordinator.engine.host import host_facts
from coordinator.results.tables.reader import open_run
from coordinator.swarm.generator import document, text_of
from coordinator.swarm.trial import run_trial

FILE: Final = Path(__file__).with_name("golden.json")
SWARM_SEED: Final = 16
SWARM_SCENARIOS: Final = 200
_COUNTED: Final = ("python", "numpy", "machine")


def numerics_here() -> dict[str, str]:
    """Return what the bits of a run may depend on, on this host."""
    facts = host_facts()
    found = {name: facts[name] for name in _COUNTED} | facts["numerics"]
    # Runs of the tests are too small for BLAS to use more than one.
    del found["blas_threads"]
    return found


def recorded() -> dict[str, dict[str, str]] | None:
    """Return the digests by kind (``scenarios``, ``swarm``) and name; None: none are of these numerics."""
    here = numerics_here()
    for entry in json.loads(FILE.read_text()):
        if entry["numerics"] == here:
            return {kind: entry[kind] for kind in ("scenarios", "swarm")}
    return None


def digest_of_run(run: Path) -> str:
    """Return the digest of the tables and the hash of the model of a run directory."""
    model = hashlib.blake2b((run / "model.npz").read_bytes(), digest_size=8).hexdigest()
    return f"{open_run(run).manifest['digest']} {model}"


def digest_of_swarm(index: int) -> str:
    """Run scenario ``index`` of the swarm; return the hash of its text and the digest of its run."""
    text = text_of(document(SWARM_SEED, index))
    name = hashlib.blake2b(text.encode(), digest_size=8).hexdigest()
    return f"{name} {run_trial(text, f'swarm-{index}').digest()}"


def main() -> None:
    """Record the digests of this host, in place of those that it had."""
    names = [*SHORTENED, *(name for name in NEEDS_DATA if data_folder(name))]
    with tempfile.TemporaryDirectory() as folder:
        run_apart(names, Variant(Path(folder), ("compute.batch=1",)))
        scenarios = {name: digest_of_run(Path(folder) / name) for name in names}
    here: dict[str, Any] = {
        "numerics": numerics_here(),
        "scenarios": scenarios,
        "swarm": {str(index): digest_of_swarm(index) for index in range(SWARM_SCENARIOS)},
    }
    entries = json.loads(FILE.read_text()) if FILE.exists() else []
    others = [entry for entry in entries if entry["numerics"] != here["numerics"]]
    current = {index: digest.split()[0] for index, digest in here["swarm"].items()}
    for entry in others:
        known = entry["swarm"].items()
        entry["swarm"] = {index: digest for index, digest in known if digest.split()[0] == current[index]}
    FILE.write_text(json.dumps([*others, here], indent=1) + "\n")


if __name__ == "__main__":
    main()
