"""NeuMF in PyTorch, as docs/torch.md has it, against FedNCF: leave-one-out on MovieLens 100K.

    python benchmarks/torch_ncf.py DATA            HR@10 and NDCG@10 among 99 others, seeds 1 to 3
    python benchmarks/torch_ncf.py DATA --speed    CPU time a device, in batches and one by one

DATA is a folder with ``ml-100k``. Networks, rates and rounds are those of ``ncf.py``; both train the same
devices in every round. Needs the extra torch.
"""

from __future__ import annotations

import argparse
import os

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import re
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
from ncf_training import DATASETS, NETWORK, REFERENCE_RADII, Training, assembled, learning_of, scenario_of

from edge.core import plugins

PAGE = Path(__file__).parents[1] / "docs" / "torch.md"
DATASET = DATASETS["ml-100k"]
METHODS = ("fedncf", "neumf")


def settings_of(method: str) -> dict[str, Any]:
    """Return the section ``learning`` of a method: FedNCF's rates, under that method's names."""
    if method == "fedncf":
        return learning_of("fedncf", DATASET, {}, REFERENCE_RADII)
    return {
        "algorithm": method,
        **NETWORK,
        "personal_steps": 2,
        "personal_learning_rate": DATASET.settings["user_learning_rate"],
        "optimizer": {"kind": "adam", "beta2": 0.99, "epsilon": 1e-6},
        "learning_rate": DATASET.settings["learning_rate"],
    }


def training(method: str, data: Path, seed: int) -> Training:
    """Return the training of a method before its first round."""
    learning = settings_of(method)
    text = scenario_of(DATASET, data, learning, DATASET.rounds, seed, validation=False)
    return Training(assembled(text), seed)


def print_accuracy(data: Path) -> None:
    """Print what both methods reach with each seed, and on average."""
    for method in METHODS:
        ends = []
        for seed in (1, 2, 3):
            *_, end = training(method, data, seed).curve(DATASET.rounds, DATASET.cohort, DATASET.rounds)
            print(
                f"{method:7} seed {seed}: HR {end.hr:.4f}  NDCG {end.ndcg:.4f}  {end.cpu_s:.0f} s CPU",
                flush=True,
            )
            ends.append(end)
        hr, ndcg = ([getattr(end, metric) for end in ends] for metric in ("hr", "ndcg"))
        print(
            f"{method:7} HR {statistics.fmean(hr):.4f} ± {statistics.stdev(hr):.4f}"
            f"  NDCG {statistics.fmean(ndcg):.4f} ± {statistics.stdev(ndcg):.4f}",
            flush=True,
        )


def print_speed(data: Path) -> None:
    """Print the CPU time of a device's update, the best of three."""
    for method in METHODS:
        begun = training(method, data, 1)
        kernel = begun.workload.training(begun.state, 0)
        for label, parts in (
            ("256 together", [np.arange(256)]),
            ("100 together", [np.arange(100)]),
            ("one by one", np.split(np.arange(40), 40)),
        ):
            best_s = float("inf")
            for _ in range(3):
                start_s = time.process_time()
                for part in parts:
                    for _ in kernel(part)():
                        pass
                best_s = min(best_s, (time.process_time() - start_s) / sum(map(len, parts)))
            print(f"{method:7} {label:13} {best_s * 1e3:7.2f} ms a device", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("data", type=Path)
    parser.add_argument("--speed", action="store_true")
    options = parser.parse_args()
    (source,) = re.findall(r"^`neumf\.py`[^\n]*\n\n```python\n(.*?)```", PAGE.read_text(), re.M | re.S)
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "neumf.py"
        file.write_text(source)
        plugins.load(file)
        (print_speed if options.speed else print_accuracy)(options.data)


if __name__ == "__main__":
    main()
