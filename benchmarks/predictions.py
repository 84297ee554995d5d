"""Metrics of five methods on MovieLens 100K: of their runs, and of their predictions by other libraries.

    pip install ranx scikit-learn pandas
    python benchmarks/predictions.py path/to/ml-100k

Prints, for each method, both values of each metric and the largest difference.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path
from typing import Any

from ranx import Qrels, Run, evaluate
from sklearn.metrics import mean_absolute_error, root_mean_squared_error

import recfleet

METHODS: dict[str, dict[str, Any]] = {
    "fedrecon": {"factors": 8, "learning_rate": 0.05},
    "fedavg-mf": {"factors": 8},
    "fedncf": {"mlp_factors": 8, "user_embeddings": "reconstructed"},
    "pfedme": {"factors": 8},
    "blur": {"factors": 8, "norm_bound": 1.0},
}
RANKED = {"hit_rate": "hr", "ndcg": "ndcg", "recall": "recall", "precision": "precision"}
ROUNDS = 20


def scenario(data: Path, method: str) -> dict[str, Any]:
    """Return the scenario of a method."""
    return {
        "format": 2,
        "data": {"source": "movielens-100k", "path": data},
        "fleet": {"mix": "global_android_2024", "availability": "always_on"},
        "learning": {"algorithm": method, **METHODS[method]},
        "rounds": {"count": ROUNDS, "cohort": 100, "deadline": "5 min"},
        "evaluation": {"every": ROUNDS, "ranking": {"k": [5, 10]}},
    }


def others(table: Any) -> dict[str, float]:
    """Return the metrics that the other libraries make of a table of predictions."""
    kept = table[table.rating.notna()]
    relevant = {str(user): {str(item): 1 for item in rows.item} for user, rows in kept.groupby("user")}
    # Scores that are equal have an order here, so the rank stands for the score.
    ranked = {
        str(user): dict(zip(rows.item.astype(str), -rows["rank"].astype(float), strict=True))
        for user, rows in table.groupby("user")
    }
    wanted = [f"{name}@{k}" for name in RANKED for k in (5, 10)]
    made = evaluate(Qrels(relevant), Run(ranked), wanted, make_comparable=True)
    found = {f"{RANKED[name.split('@')[0]]}@{name.split('@')[1]}": value for name, value in made.items()}
    found["rmse"] = root_mean_squared_error(kept.rating, kept.score)
    return found | {"mae": mean_absolute_error(kept.rating, kept.score)}


def main() -> None:
    """Compare."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("data", type=Path, help="the folder ml-100k")
    data = parser.parse_args().data.resolve()
    with tempfile.TemporaryDirectory() as folder:
        for method in METHODS:
            run = recfleet.run(scenario(data, method), out=Path(folder) / method)
            last = [
                row for row in run.evaluations.to_pylist() if row["tag"] == "all" and row["round"] == ROUNDS
            ]
            ours = {row["metric"]: row["value"] for row in last}
            theirs = others(run.predict(top=100).to_pandas())
            both = [name for name in theirs if name in ours]
            shown = ", ".join(f"{name} {ours[name]:.6f} {theirs[name]:.6f}" for name in both)
            print(
                f"{method}: {shown}; at most {max(abs(ours[name] - theirs[name]) for name in both):.0e} apart"
            )


if __name__ == "__main__":
    main()
