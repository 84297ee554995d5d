"""Exporting the masks of many devices, and running a round's sample of them.

    python benchmarks/serving.py [DEVICES]

Printed are: seconds and megabytes of an inference of a run, 1,000 devices over a catalogue of 1,682 items,
and of masks alone; how much quicker patching a template is than building a graph for every device; and what
compression keeps of the best ten items. The first inference loads onnx and onnxruntime, too. Times are of
this host.
"""

import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import psutil

from coordinator.run.assembling import assemble
from coordinator.scenario.load import load
from edge.learning.method_settings import Ridge
from edge.onnx.compression import compress, top_overlap
from edge.onnx.mask_graph import mask_model
from edge.onnx.metadata import ModelInfo
from edge.onnx.score_graphs import ItemModel
from edge.onnx.session import OnnxSession, run_round
from edge.onnx.stateless_graph import stateless_model
from edge.onnx.templates import mask_template

ITEMS, WIDTH, FACTORS, HIDDEN = 1682, 19, 8, 16
ROUND = 1000
BUILT = 200
"""Graphs built to measure what one takes; building one for each of 10,000 devices takes minutes."""
SHAPES = {
    "zero-order": {"mean": ()},
    "one-order": {"intercept": (), "weights": (WIDTH,)},
    "two-order": {"intercept": (), "weights": (WIDTH,), "factors": (WIDTH, FACTORS)},
    "high-order": {
        "hidden_weights": (WIDTH, HIDDEN),
        "hidden_bias": (HIDDEN,),
        "output_weights": (HIDDEN,),
        "intercept": (),
    },
}

SCENARIO = """
format: 2
data: {{source: synthetic-ratings, users: {devices}, items: {items}, features: {{kind: synthetic}}}}
fleet: {{mix: global_android_2024}}
learning: {learning}
rounds: {{count: 2, cohort: 2}}
inference: {{every: 1, devices: {devices}}}
"""


def normal(rng: np.random.Generator, *shape: int) -> np.ndarray:
    return np.asarray(rng.normal(0.0, 0.3, shape), np.float32)


def microseconds(latency_s: Sequence[float] | np.ndarray, quantile: float) -> str:
    return f"{np.quantile(latency_s, quantile) * 1e6:.0f} µs"


def exports(rng: np.random.Generator, devices: int) -> None:
    print(f"export of {devices} masks, {ITEMS} items with {WIDTH} features")
    for kind, shapes in SHAPES.items():
        features, info = catalogue(rng, kind)
        stacked = {name: normal(rng, devices, *shape) for name, shape in shapes.items()}
        start_s = time.perf_counter()
        template = mask_template(kind, shapes, info, features=features)
        total = sum(map(len, template.patched_all(stacked)))
        patched_s = time.perf_counter() - start_s
        start_s = time.perf_counter()
        for device in range(BUILT):
            weights = {name: np.asarray(array[device]) for name, array in stacked.items()}
            mask_model(kind, weights, info, features=features)
        built_s = (time.perf_counter() - start_s) * devices / BUILT
        print(
            f"  {kind:<10}  patched {patched_s:.2f} s ({total / 1e6:.0f} MB), built {built_s:.1f} s: "
            f"{built_s / patched_s:.0f} times as quick; wanted 10"
        )


def rounds(rng: np.random.Generator) -> None:
    print(f"masks of a round of {ROUND} devices over {ITEMS} items, in one session")
    for kind, shapes in SHAPES.items():
        features, info = catalogue(rng, kind)
        stacked = {name: normal(rng, ROUND, *shape) for name, shape in shapes.items()}
        weights = {name: np.asarray(array[0]) for name, array in stacked.items()}
        model = mask_model(kind, weights, info, features=features, weights_as_inputs=True)
        before_bytes, start_s = resident_bytes(), time.perf_counter()
        found = run_round(OnnxSession(model), stacked, shared={"items": np.arange(ITEMS)})
        report(kind, time.perf_counter() - start_s, resident_bytes() - before_bytes, found.latency_s)


def inferences() -> None:
    """Measure what a run does: draw, reconstruct, run, compare each with numpy, check each list."""
    print(f"an inference of a run: {ROUND} devices over {ITEMS} items, in one session; and the next one")
    masks = {
        "one-order": "{kind: one-order}",
        None: None,
        "two-order": f"{{kind: two-order, factors: {FACTORS}}}",
        "high-order": f"{{kind: high-order, width: {HIDDEN}, epochs: 5}}",
    }
    for kind, mask in masks.items():
        learning = "{algorithm: fedrecon}" if mask is None else f"{{algorithm: fedmmf, mask: {mask}}}"
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder, "benchmark.yaml")
            file.write_text(SCENARIO.format(items=ITEMS, devices=ROUND, learning=learning), encoding="utf-8")
            assembly = assemble(load(file))
        state = assembly.workload.algorithm.initial_state(0)
        assert assembly.inference is not None
        for number in (1, 2):
            before_bytes, start_s = resident_bytes(), time.perf_counter()
            found = assembly.inference.run(state, number)
            taken_s = time.perf_counter() - start_s
            report(str(kind), taken_s, resident_bytes() - before_bytes, found.host_latency_s)


def report(kind: str, taken_s: float, grown_bytes: int, latency_s: np.ndarray) -> None:
    print(
        f"  {kind:<10}  {taken_s:.3f} s (wanted 0.5), {grown_bytes / 1e6:.1f} MB (wanted 40), "
        f"a call p50 {microseconds(latency_s, 0.5)}, p99 {microseconds(latency_s, 0.99)}"
    )


def resident_bytes() -> int:
    return int(psutil.Process().memory_info().rss)


def stateless(rng: np.random.Generator) -> None:
    items = ItemModel(normal(rng, ITEMS, 16), normal(rng, ITEMS), 3.5)
    info = ModelInfo("benchmark", 0, "none", ITEMS, rating_range=(1.0, 5.0))
    plain = stateless_model(items, Ridge(), info, user_bias=True, top=10)
    histories = [
        {
            "items": np.sort(rng.choice(ITEMS, 50, replace=False)),
            "ratings": rng.integers(1, 6, 50).astype(np.float32),
        }
        for _ in range(ROUND)
    ]
    print(f"stateless recommender, {ITEMS} items, 16 factors, histories of 50, {ROUND} users")
    reference = None
    for how in ("none", "fp16", "int8"):
        contents = compress(plain, how)
        session = OnnxSession(contents)
        calls = [session.run(history) for history in histories]
        lists = np.array([call.outputs["top_items"] for call in calls])
        reference = lists if reference is None else reference
        print(
            f"  {how:<4}  {len(contents) / 1e3:.0f} kB, "
            f"a call p50 {microseconds([call.latency_s for call in calls], 0.5)}, "
            f"session {session.memory_bytes / 1e6:.1f} MB opened in {session.opening_s * 1e3:.0f} ms, "
            f"top-10 overlap {top_overlap(reference, lists).mean():.4f}"
        )


def catalogue(rng: np.random.Generator, kind: str) -> tuple[np.ndarray | None, ModelInfo]:
    if kind == "zero-order":
        return None, ModelInfo("benchmark", 0, "none", ITEMS)
    names = tuple(f"feature {place}" for place in range(WIDTH))
    return normal(rng, ITEMS, WIDTH), ModelInfo("benchmark", 0, "none", ITEMS, feature_names=names)


def main() -> None:
    rng = np.random.default_rng(0)
    inferences()
    rounds(rng)
    exports(rng, int(sys.argv[1]) if len(sys.argv) > 1 else 10_000)
    stateless(rng)


if __name__ == "__main__":
    main()
