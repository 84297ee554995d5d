"""Model files on the oldest onnxruntime that the documentation names, in an environment of its own."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from serving_models import info_for, item_model

from edge.learning.method_settings import Ridge
from edge.onnx.compression import compress
from edge.onnx.session import OnnxSession
from edge.onnx.stateless_graph import stateless_model

OLDEST = "1.15.0"
PAGE = Path(__file__).parents[2] / "docs" / "model-files.md"
HISTORY = {"items": [1, 5, 9, 30], "ratings": [5.0, 1.0, 4.0, 3.0]}
PROGRAM = """
import json, sys
import numpy as np
import onnxruntime
history = json.loads(sys.argv[1])
feeds = {"items": np.array(history["items"]), "ratings": np.array(history["ratings"], np.float32)}
found = {}
for name in sys.argv[2:]:
    session = onnxruntime.InferenceSession(name, providers=["CPUExecutionProvider"])
    outputs = [output.name for output in session.get_outputs()]
    found[name] = dict(zip(outputs, (array.tolist() for array in session.run(None, feeds))))
print(json.dumps({"version": onnxruntime.__version__, "found": found}))
"""


def models() -> dict[str, bytes]:
    plain = stateless_model(
        item_model(np.random.default_rng(2), 60, 8), Ridge(), info_for(60), user_bias=True, top=10
    )
    return {how: compress(plain, how) for how in ("none", "fp16", "int8")}


def test_no_two_operators_share_what_turns_int8_back() -> None:
    graph = onnx.load_from_string(models()["int8"]).graph
    outputs = [node.output[0] for node in graph.node if node.op_type == "DequantizeLinear"]
    used = [name for node in graph.node for name in node.input]
    assert len(outputs) > 1
    assert [used.count(name) for name in outputs] == [1] * len(outputs)


@pytest.mark.slow
@pytest.mark.skipif(sys.version_info[:2] != (3, 11), reason=f"onnxruntime {OLDEST} is for Python up to 3.11")
@pytest.mark.skipif(importlib.util.find_spec("uv") is None, reason="needs uv, of the extra dev")
def test_every_compression_runs_on_the_oldest_runtime(tmp_path: Path) -> None:
    assert f"onnxruntime {OLDEST.removesuffix('.0')} and newer" in PAGE.read_text(encoding="utf-8")
    uv = [sys.executable, "-m", "uv"]
    python = tmp_path / "venv" / "bin" / "python"
    for line in (
        [*uv, "venv", "--quiet", "--python", sys.executable, str(tmp_path / "venv")],
        [*uv, "pip", "install", "--quiet", "--python", str(python), f"onnxruntime=={OLDEST}", "numpy<2"],
    ):
        done = subprocess.run(line, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
    for how, contents in models().items():
        (tmp_path / how).write_bytes(contents)
    run = [str(python), "-c", PROGRAM, json.dumps(HISTORY), *models()]
    done = subprocess.run(run, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout)
    assert answer["version"] == OLDEST
    feeds: dict[str, Any] = {
        "items": np.array(HISTORY["items"]),
        "ratings": np.array(HISTORY["ratings"], np.float32),
    }
    for how, contents in models().items():
        here = OnnxSession(contents).run(feeds).outputs
        there = answer["found"][how]
        np.testing.assert_allclose(there["scores"], here["scores"], rtol=1e-5)
        assert there["top_items"] == here["top_items"].tolist()
