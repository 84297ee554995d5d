"""Methods whose models are modules of PyTorch; run with ``-m torch`` where torch is installed."""

from __future__ import annotations

import importlib
import importlib.util
import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from coordinator.cli.entry import execute
from coordinator.engine.host import numerics
from coordinator.swarm.conformance import conform
from edge.core import plugins
from edge.core.errors import ExportError, MissingExtraError
from edge.learning.base import Problem, Ratings
from edge.learning.registry import create
from edge.learning.torch_recommender import TorchRecommender
from edge.onnx.personal_models import personal_models

PAGE = Path(__file__).parents[2] / "docs" / "torch.md"
INSTALLED = importlib.util.find_spec("torch") is not None
needs_torch = pytest.mark.skipif(
    not INSTALLED, reason="torch is not installed: pip install 'recfleet[torch]'"
)

FACTORS = """
from typing import Literal

import torch
from torch import nn

from edge.learning.torch_recommender import PersonalTorchSettings, TorchRecommender, TorchSettings


class FactorsSettings(PersonalTorchSettings):
    algorithm: Literal["factors"]


class Model(nn.Module):
    def __init__(self, n_items):
        super().__init__()
        self.user = nn.Parameter(torch.randn(3))
        self.items = nn.Embedding(n_items, 3)
        self.offset = nn.Parameter(torch.zeros(1))

    def forward(self, items):
        return self.items(items) @ self.user + self.offset


class Factors(TorchRecommender):
    Settings = FactorsSettings
    personal = ("user",)
    item_rows = ("items.weight",)

    @staticmethod
    def build(problem, settings):
        return Model(problem.n_items)

    @staticmethod
    def loss(prediction, target):
        return 0.5 * (prediction - target).square()
"""
N_ITEMS = 70


def samples() -> dict[str, str]:
    """The files of the page by name."""
    text = PAGE.read_text(encoding="utf-8")
    return dict(re.findall(r"^`(neumf\.\w+)`[^\n]*\n\n```\w+\n(.*?)```", text, re.MULTILINE | re.DOTALL))


@pytest.fixture
def torch() -> Any:
    return importlib.import_module("torch")


@pytest.fixture
def factors(tmp_path: Path) -> type[TorchRecommender]:
    file = tmp_path / "factors.py"
    file.write_text(FACTORS, encoding="utf-8")
    (entry,) = plugins.load(file)
    method: type[TorchRecommender] = plugins.get(entry.kind, entry.name)
    return method


@pytest.fixture
def neumf(tmp_path: Path) -> type[TorchRecommender]:
    file = tmp_path / "neumf.py"
    file.write_text(samples()["neumf.py"], encoding="utf-8")
    (entry,) = plugins.load(file)
    method: type[TorchRecommender] = plugins.get(entry.kind, entry.name)
    return method


def made(method: type[TorchRecommender], n_items: int = N_ITEMS, **settings: Any) -> TorchRecommender:
    section = method.Settings.model_validate({"algorithm": method.name(), **settings})
    found = create(section, Problem(n_items=n_items))
    assert isinstance(found, TorchRecommender)
    return found


def ratings(counts: Sequence[int], seed: int = 0) -> Ratings:
    draws = np.random.default_rng(seed)
    items = [np.sort(draws.choice(N_ITEMS, count, replace=False)) for count in counts]
    total = int(sum(counts))
    return Ratings(
        np.concatenate([[0], np.cumsum(counts)]).astype(np.int64),
        np.concatenate(items),
        draws.normal(size=total).astype(np.float32),
    )


def of(batch: Ratings, users: npt.NDArray[np.int64]) -> Ratings:
    counts = np.diff(batch.indptr)[users]
    parts = [np.arange(batch.indptr[user], batch.indptr[user + 1]) for user in users]
    at = np.concatenate(parts)
    return Ratings(np.concatenate([[0], np.cumsum(counts)]), batch.items[at], batch.ratings[at])


def test_without_torch_a_method_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    file = tmp_path / "neumf.py"
    file.write_text(samples()["neumf.py"], encoding="utf-8")
    with pytest.raises(MissingExtraError, match=r"neumf.py needs the package torch; pip install 'recfleet"):
        plugins.load(file)


@pytest.mark.torch
@needs_torch
class TestMethods:
    @pytest.fixture(autouse=True)
    def unchanged(self, torch: Any) -> Iterator[None]:
        """Nothing of torch is set otherwise after a test, and nobody has drawn from its generator."""
        torch.manual_seed(5)

        def settings() -> tuple[Any, ...]:
            drawn = torch.default_generator.get_state().numpy().tobytes()
            return torch.get_num_threads(), torch.are_deterministic_algorithms_enabled(), drawn

        before = settings()
        yield
        assert settings() == before

    def test_the_sample_of_the_page_runs(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        monkeypatch.chdir(tmp_path)
        for name, text in samples().items():
            Path(name).write_text(text, encoding="utf-8")
        page = PAGE.read_text(encoding="utf-8")
        (block,) = re.findall(r"```sh\n(.*?)```", page, re.DOTALL)
        for line in block.splitlines():
            assert execute(shlex.split(line)[1:]) == 0, capsys.readouterr().err
        assert "estimated from the shapes" not in capsys.readouterr().out
        (run,) = Path("runs").iterdir()
        host = json.loads((run / "manifest.json").read_text(encoding="utf-8"))["host"]["numerics"]
        assert {"torch", "torch_cpu", "torch_threads", "torch_mkl"} <= set(host)
        (script,) = re.findall(r"too\):\n\n```python\n(.*?)```", page, re.DOTALL)
        exec(compile(script, "page", "exec"), {})
        assert "torch.Size([5])" in capsys.readouterr().out

    def test_the_sample_keeps_the_rules(self, neumf: type[TorchRecommender]) -> None:
        findings = list(conform(plugins.entries("algorithms")["neumf"]))
        assert findings
        assert [finding.rule for finding in findings if finding.problem is not None] == []

    @pytest.mark.parametrize("client", ["steps", "batches"])
    @pytest.mark.parametrize("widths", [(7, 5, (9, 3)), (16, 8, (16, 8))])
    def test_a_device_has_the_same_bits_in_any_batch(
        self, neumf: type[TorchRecommender], client: str, widths: tuple[int, int, tuple[int, ...]]
    ) -> None:
        settings: dict[str, Any] = {"method": "gradient-steps", "steps": "2"}
        if client == "batches":
            settings = {"method": "mini-batches", "batch_size": "7", "epochs": "2"}
        gmf, mlp, hidden = widths
        method = made(
            neumf,
            gmf_factors=gmf,
            mlp_factors=mlp,
            layers=hidden,
            negatives=2,
            client={**settings, "learning_rate": "0.1", "regularization": "0.01"},
        )
        counts = [0, 1, 3, 4, 5, 5, 5, 6, 9, 11, 12, 20, 7, 7, 3, 2]
        batch, draws = ratings(counts), np.random.default_rng(1)
        n = len(counts)
        keys = draws.integers(0, 2**63, n).astype(np.uint64)
        local = draws.normal(size=(n, method.local_width)).astype(np.float32)
        steps = draws.integers(1, 4, n)
        state = method.initial_state(3)

        def bits(users: npt.NDArray[np.int64]) -> list[tuple[Any, ...]]:
            part, own = of(batch, users), local[users]
            updates = method.client_update(state, part, keys[users], local=own, steps=steps[users])
            scores = method.scores(state, part, keys[users], own)
            found = method.predict(state, part, part, keys[users], own)
            return [
                (
                    {name: array.tobytes() for name, array in update.arrays.items()},
                    repr((update.weight, update.examples, update.loss)),
                    np.asarray(update.local).tobytes(),
                    scores[index].tobytes(),
                    found[part.indptr[index] : part.indptr[index + 1]].tobytes(),
                )
                for index, update in enumerate(updates)
            ]

        together = bits(np.arange(n))
        for size in (1, 2, 7, n):
            for _ in range(3):
                users = draws.permutation(n)[:size]
                assert bits(users) == [together[user] for user in users]

    def test_gradients_are_those_of_plain_torch(self, factors: type[TorchRecommender], torch: Any) -> None:
        method = made(
            factors,
            personal_learning_rate=0.3,
            personal_steps=1,
            client={
                "method": "gradient-steps",
                "steps": "2",
                "learning_rate": "0.2",
                "regularization": "0.1",
            },
        )
        batch, keys = ratings([5, 9]), np.zeros(2, np.uint64)
        state = method.initial_state(2)
        updates = list(method.client_update(state, batch, keys))
        for user, update in enumerate(updates):
            part = of(batch, np.array([user]))
            module = method.model(state).requires_grad_(True)
            items, target = torch.tensor(part.items), torch.tensor(part.ratings)
            rates = {"user": 0.3, "items.weight": 0.2, "offset": 0.2}
            for step in range(3):
                loss = 0.5 * (module(items) - target).square().mean()
                if step == 1:
                    assert update.loss == pytest.approx(loss.item(), rel=1e-5)
                decayed = [module.user.square().sum(), module.items(items).square().sum()]
                loss = loss + 0.05 * (sum(decayed) + module.offset.square().sum())
                loss.backward()
                with torch.no_grad():
                    for name, parameter in module.named_parameters():
                        if step > 0 or name == "user":
                            parameter.sub_(rates[name] * parameter.grad)
                        parameter.grad = None
            weight = len(part.items)
            change = module.items.weight.detach().numpy() - state["items.weight"]
            np.testing.assert_array_equal(update.arrays["items"], part.items)
            np.testing.assert_allclose(
                update.arrays["item_rows"], weight * change[part.items], rtol=1e-4, atol=1e-5
            )
            offset = module.offset.detach().numpy() - state["offset"]
            np.testing.assert_allclose(update.arrays["offset"], weight * offset, rtol=1e-4, atol=1e-5)
            user_row = module.user.detach().numpy() - state["user"]
            np.testing.assert_allclose(np.asarray(update.local)[0], user_row, rtol=1e-4, atol=1e-5)

    def test_a_dense_update_is_the_sparse_one_laid_out(self, factors: type[TorchRecommender]) -> None:
        batch, keys = ratings([4, 6]), np.zeros(2, np.uint64)
        (sparse, dense) = (
            list(method.client_update(method.initial_state(1), batch, keys))
            for method in (made(factors), made(factors, upload="dense"))
        )
        for one, other in zip(sparse, dense, strict=True):
            table = np.zeros((N_ITEMS, 3), np.float32)
            table[one.arrays["items"]] = one.arrays["item_rows"]
            np.testing.assert_array_equal(other.arrays["item_rows"], table)

    def test_a_client_of_two_users_uploads_the_sum_of_theirs(self, factors: type[TorchRecommender]) -> None:
        method = made(factors)
        batch, state = ratings([4, 6, 5]), method.initial_state(1)
        keys = np.array([1, 2], np.uint64)
        pair, last = method.client_update(state, batch, keys, clients=np.array([0, 2, 3]))
        alone = list(method.client_update(state, batch, np.arange(3).astype(np.uint64)))
        assert (pair.weight, pair.examples, last.weight) == (10.0, 10, 5.0)
        expected = alone[0].arrays["offset"] + alone[1].arrays["offset"]
        np.testing.assert_allclose(pair.arrays["offset"], expected, rtol=1e-6)
        np.testing.assert_array_equal(last.arrays["item_rows"], alone[2].arrays["item_rows"])
        assert np.asarray(pair.local).shape == (2, 3)

    def test_scores_are_predictions_of_every_item(self, factors: type[TorchRecommender]) -> None:
        method = made(factors)
        batch, keys = ratings([4, 6]), np.zeros(2, np.uint64)
        state = method.initial_state(1)
        everything = Ratings(
            np.array([0, N_ITEMS, 2 * N_ITEMS]),
            np.tile(np.arange(N_ITEMS), 2),
            np.zeros(2 * N_ITEMS, np.float32),
        )
        predicted = method.predict(state, batch, everything, keys).reshape(2, N_ITEMS)
        np.testing.assert_allclose(method.scores(state, batch, keys), predicted, rtol=1e-5, atol=1e-6)
        assert np.ptp(predicted) > 0

    def test_the_seed_alone_makes_the_first_model(self, factors: type[TorchRecommender], torch: Any) -> None:
        method = made(factors)
        first = method.initial_state(1)
        state = torch.default_generator.get_state()
        torch.rand(3)
        again, other = method.initial_state(1), method.initial_state(2)
        torch.default_generator.set_state(state)
        assert first["items.weight"].tobytes() == again["items.weight"].tobytes()
        assert first["items.weight"].tobytes() != other["items.weight"].tobytes()

    def test_work_is_counted(self, neumf: type[TorchRecommender]) -> None:
        method = made(neumf, 1000, personal_steps=2)
        work = method.work(np.array([10, 20]))
        flops = work.flops.sum(axis=1) * work.steps
        # Three forwards; back to the inputs three times; the weights' gradients once: 2 flops a weight each.
        weights = 256 * 128 + 128 * 64 + 64 * 32 + 64
        products = (3 + 3 + 1) * 2 * weights
        assert products <= (flops[1] - flops[0]) / 50 <= 1.25 * products
        assert np.all(work.memory_bytes > 4 * 1000 * 160)

    def test_no_graph_is_known(self, factors: type[TorchRecommender]) -> None:
        method = made(factors)
        with pytest.raises(
            ExportError, match=r"no graph of the models of Factors; write .* torch\.onnx\.export"
        ):
            personal_models(method, method.initial_state(1), ratings([3]), np.zeros(1, np.uint64))

    @pytest.mark.parametrize(
        ("old", "new", "message"),
        [
            ('personal = ("user",)', 'personal = ("users",)', "no parameter 'users'; there are user, offset"),
            (
                'item_rows = ("items.weight",)',
                'item_rows = ("offset",)',
                "not the weight of a plain nn.Embedd",
            ),
            ("Settings(PersonalTorch", "Settings(Torch", "derive FactorsSettings from PersonalTorchSettings"),
            ('personal = ("user",)', "samples_negatives = True", "FactorsSettings needs a field 'negatives'"),
            ("torch.zeros(1)", "torch.zeros(())", "have a dimension or more"),
            ("torch.zeros(1)", "torch.zeros(1, dtype=torch.float64)", "parameters are float32"),
            ("self.offset =", "self.gone = nn.Dropout(0.5)\n        self.offset =", "'gone' is a Dropout"),
            (
                'personal = ("user",)\n    item_rows = ("items.weight",)',
                'personal = ("user", "items.weight", "offset")',
                "every parameter is personal",
            ),
        ],
    )
    def test_a_module_that_cannot_be_used_is_refused(
        self, tmp_path: Path, old: str, new: str, message: str
    ) -> None:
        assert old in FACTORS
        file = tmp_path / "other.py"
        file.write_text(FACTORS.replace(old, new), encoding="utf-8")
        (entry,) = plugins.load(file)
        with pytest.raises(ValueError, match=re.escape(message)):
            made(plugins.get(entry.kind, entry.name))

    @pytest.mark.skipif(sys.platform != "linux", reason="MKL is that of Linux on x86-64")
    def test_products_that_depend_on_an_address_are_refused(self, tmp_path: Path, torch: Any) -> None:
        """MKL reads its mode once, at the first product of a process."""
        if not torch.backends.mkl.is_available():
            pytest.skip("this torch has no MKL")
        file = tmp_path / "factors.py"
        file.write_text(FACTORS, encoding="utf-8")
        code = (
            "import torch\n"
            "torch.bmm(torch.ones(2, 9, 9), torch.ones(2, 9, 9))\n"
            "from edge.core import plugins\n"
            "from edge.learning.base import Problem\n"
            f"(entry,) = plugins.load({str(file)!r})\n"
            "method = plugins.get(entry.kind, entry.name)\n"
            "method(method.Settings(algorithm='factors'), Problem(n_items=9))\n"
        )
        outside = {name: value for name, value in os.environ.items() if name != "MKL_CBWR"}
        for mode, returned in ({}, 1), ({"MKL_CBWR": "AUTO,STRICT"}, 0):
            found = subprocess.run(
                [sys.executable, "-c", code], env=outside | mode, capture_output=True, text=True, check=False
            )
            assert found.returncode == returned, found.stderr
            assert ("Set MKL_CBWR=AUTO,STRICT in the environment" in found.stderr) == bool(returned)

    def test_numerics_name_torch(self, torch: Any) -> None:
        assert numerics()["torch"] == torch.__version__
