from __future__ import annotations

import importlib
from types import ModuleType

import pytest

from edge.homomorphic import available
from edge.homomorphic.schemes import ModelledScheme, Scheme, TensealScheme


@pytest.fixture(scope="session")
def tenseal() -> ModuleType:
    if not available():
        pytest.skip("TenSEAL is not installed: pip install '.[he]'")
    return importlib.import_module("tenseal")


@pytest.fixture(scope="session")
def tenseal_scheme(tenseal: ModuleType) -> TensealScheme:
    return TensealScheme()


@pytest.fixture(params=["modelled", "tenseal"])
def scheme(request: pytest.FixtureRequest) -> Scheme:
    if request.param == "modelled":
        return ModelledScheme()
    real: Scheme = request.getfixturevalue("tenseal_scheme")
    return real
