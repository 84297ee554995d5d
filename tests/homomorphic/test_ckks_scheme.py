"""What TenSEAL gives, what it is needed for, and what happens where it is missing."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from edge.core.errors import LocalProtocolError, MissingExtraError
from edge.homomorphic import available
from edge.homomorphic.config import CIPHERTEXT_BYTES, SLOTS
from edge.homomorphic.schemes import TensealPublicKey, TensealScheme
from edge.homomorphic.vectors import pack

ROOT = Path(__file__).resolve().parents[2]


def test_without_tenseal_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tenseal", None)
    assert not available()
    with pytest.raises(MissingExtraError, match=r"pip install 'recfleet\[he\]'"):
        TensealScheme()
    with pytest.raises(MissingExtraError):
        TensealPublicKey(b"")


def test_rounds_with_the_stand_in_need_no_tenseal() -> None:
    program = (
        "import sys; sys.modules['tenseal'] = None; sys.path[:0] = ['tests/homomorphic', '.']\n"
        "from homomorphic_harness import Fleet\n"
        "from edge.homomorphic.schemes import ModelledScheme\n"
        "from edge.homomorphic import available\n"
        "fleet = Fleet(ModelledScheme(), 3); fleet.contribute(); fleet.finish(); fleet.check_sum(range(3))\n"
        "assert not available()\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


def test_asking_whether_it_is_there_does_not_import_it() -> None:
    program = (
        "import sys\n"
        "from edge.homomorphic import available\n"
        "available()\n"
        "assert 'tenseal' not in sys.modules\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


def test_serialised_ciphertexts_differ_in_length_and_fit_their_room(tenseal_scheme: TensealScheme) -> None:
    """Their lengths are what the room is for: it must hold all of them, and not be far above."""
    random = np.random.default_rng(0)
    inputs = [np.zeros(SLOTS), np.full(SLOTS, 2.0**40), *random.normal(0, 1e6, (30, SLOTS)).round()]
    lengths = [len(tenseal_scheme.secret.encrypt(vector)[0]) for vector in inputs]
    assert len(set(lengths)) > 1
    assert min(lengths) > CIPHERTEXT_BYTES * 0.98
    assert max(lengths) < CIPHERTEXT_BYTES - 1_000


def test_a_sum_fits_the_room_of_one_ciphertext(tenseal_scheme: TensealScheme) -> None:
    running = tenseal_scheme.public.running_sum()
    for _ in range(20):
        running.add(tenseal_scheme.secret.encrypt(np.arange(float(SLOTS))))
        (ciphertext,) = running.ciphertexts()
        assert len(ciphertext) < CIPHERTEXT_BYTES - 1_000


def test_a_ciphertext_beyond_its_room_is_not_sent() -> None:
    pack([bytes(CIPHERTEXT_BYTES)])
    with pytest.raises(LocalProtocolError, match="CIPHERTEXT_BYTES"):
        pack([b"1", bytes(CIPHERTEXT_BYTES + 1)])


def test_the_coordinators_key_opens_nothing(tenseal: ModuleType, tenseal_scheme: TensealScheme) -> None:
    context = tenseal.context_from(tenseal_scheme.public_bytes, n_threads=1)
    assert not context.has_secret_key()
    ciphertext = tenseal.ckks_vector_from(context, tenseal_scheme.secret.encrypt(np.ones(2))[0])
    with pytest.raises(ValueError, match="secret"):
        ciphertext.decrypt()


def test_keys_are_fresh_for_every_scheme(tenseal_scheme: TensealScheme) -> None:
    assert TensealScheme().public_bytes != tenseal_scheme.public_bytes
