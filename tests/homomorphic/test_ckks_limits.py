"""What homomorphic sums do not protect from: the key of one device, and a coordinator that lies."""

from __future__ import annotations

import numpy as np
from homomorphic_harness import Fleet, weight_of

from edge.homomorphic.schemes import Scheme
from edge.homomorphic.vectors import pack, settle, unpack


def test_one_device_that_gives_the_key_away_opens_the_input_of_every_other(scheme: Scheme) -> None:
    fleet = Fleet(scheme, 3)
    seen: dict[int, np.ndarray] = {}
    for device in fleet.devices:
        fleet.participants[device]._watch = lambda device, vector: seen.update({device: vector.copy()})
    sent = {device: fleet.input(device) for device in fleet.devices}
    for device, message in sent.items():
        opened = settle(scheme.secret.decrypt(unpack(fleet.config, message.arrays))[: fleet.config.length])
        np.testing.assert_array_equal(opened, seen[device])


def test_a_coordinator_that_adds_one_input_to_itself_is_given_that_input(scheme: Scheme) -> None:
    fleet = Fleet(scheme, 3)
    alone = fleet.input(1)
    fleet.to_server(1, alone)
    fleet.contribute([0, 2])
    lie = scheme.public.running_sum()
    for _ in range(3):
        lie.add(unpack(fleet.config, alone.arrays))
    request = fleet.asked()._replace(arrays=pack(lie.ciphertexts()))
    total = fleet.decrypted(request).arrays["total"] / 3
    update = fleet.update(1)
    # The parts of a vector in order: of the factors, in steps, the weighted update is the first.
    steps = fleet.config.levels / 2.0
    np.testing.assert_allclose(total[:6] / steps, update.arrays["factors"].ravel(), atol=1e-3 * weight_of(1))
