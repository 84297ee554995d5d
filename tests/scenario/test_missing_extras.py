"""Scenarios that need packages which are not installed: refused when they are loaded, with what to write."""

from __future__ import annotations

import importlib.util
import sys
from importlib.machinery import ModuleSpec
from pathlib import Path

import pytest
from scenario_files import LINES, write_files

from coordinator.cli.entry import execute
from coordinator.scenario.errors import ScenarioError
from coordinator.scenario.load import load

UNIFORM = "\n".join((*LINES[:12], "  upload: dense", "  weighting: uniform", *LINES[12:])) + "\n"
PRIVATE = "privacy: {mechanism: central-gaussian, clip_norm: 1, noise_multiplier: 1}\n"
ENCRYPTED = "secure_aggregation: {mode: ckks}\n"


@pytest.fixture
def without_extras(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let no extra be installed, for whoever looks or imports."""
    find_spec = importlib.util.find_spec

    def found(name: str, package: str | None = None) -> ModuleSpec | None:
        return None if name in ("dp_accounting", "tenseal", "onnx") else find_spec(name, package)

    monkeypatch.setattr(importlib.util, "find_spec", found)
    for name in ("dp_accounting", "tenseal", "onnx"):
        monkeypatch.setitem(sys.modules, name, None)


def refusal_of(folder: Path, text: str) -> str:
    with pytest.raises(ScenarioError) as caught:
        load(write_files(folder, {"s.yaml": text}))
    (problem,) = caught.value.problems
    return str(problem).replace(f"{folder}/", "")


@pytest.mark.usefixtures("without_extras")
def test_epsilon_needs_dp_accounting(tmp_path: Path) -> None:
    assert refusal_of(tmp_path, UNIFORM + PRIVATE) == (
        "s.yaml:21:1: privacy.accounting: epsilon needs the package dp-accounting\n"
        "    install it with \"pip install 'recfleet[dp]'\", or write 'accounting: false'"
    )


@pytest.mark.usefixtures("without_extras")
def test_real_ciphertexts_need_tenseal(tmp_path: Path) -> None:
    assert refusal_of(tmp_path, UNIFORM + ENCRYPTED) == (
        "s.yaml:21:28: secure_aggregation.mode: ckks needs the package tenseal\n"
        "    install it with \"pip install 'recfleet[he]'\", or write 'crypto: modelled'"
    )


@pytest.mark.usefixtures("without_extras")
def test_models_of_devices_need_onnx(tmp_path: Path) -> None:
    assert refusal_of(tmp_path, UNIFORM + "inference: {every: 5}\n") == (
        "s.yaml:21:12: inference: writing the graphs needs the package onnx\n"
        "    install it with \"pip install 'recfleet[export]'\", or leave it out"
    )


@pytest.mark.usefixtures("without_extras")
def test_in_a_phase_too(tmp_path: Path) -> None:
    phases = (
        "phases:\n  - {name: a, rounds: 5}\n  - {name: b, rounds: 15, secure_aggregation: {mode: ckks}}\n"
    )
    assert refusal_of(tmp_path, UNIFORM + phases).startswith(
        "s.yaml:23:54: phases[1].secure_aggregation.mode: ckks needs the package tenseal\n"
    )


@pytest.mark.usefixtures("without_extras")
def test_what_the_hints_say_is_enough(tmp_path: Path) -> None:
    private = PRIVATE.replace("}", ", accounting: false}")
    encrypted = ENCRYPTED.replace("}", ", crypto: modelled}")
    scenario = load(write_files(tmp_path, {"s.yaml": UNIFORM + private + encrypted})).scenario
    assert scenario.privacy is not None
    assert scenario.privacy.accounting is False


@pytest.mark.usefixtures("without_extras")
def test_masks_need_neither(tmp_path: Path) -> None:
    text = UNIFORM + "secure_aggregation: {mode: active}\n"
    assert load(write_files(tmp_path, {"s.yaml": text})).scenario.secure_aggregation.mode == "active"


@pytest.mark.usefixtures("without_extras")
def test_the_command_line_says_so_and_exits_with_2(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = write_files(tmp_path, {"s.yaml": UNIFORM + PRIVATE + ENCRYPTED})
    assert execute(["validate", str(file)]) == 2
    shown = capsys.readouterr().err
    assert "pip install 'recfleet[dp]'" in shown
    assert "pip install 'recfleet[he]'" in shown
    assert "Traceback" not in shown
    settings = ["--set", "privacy.accounting=false", "--set", "secure_aggregation.crypto=modelled"]
    assert execute(["validate", str(file), *settings]) == 0
