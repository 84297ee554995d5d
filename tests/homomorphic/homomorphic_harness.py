"""A round of homomorphic sums with both machines, every frame passing as bytes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np

from coordinator.engine.secure_sums import Step
from coordinator.secure.homomorphic.server import CkksServer
from edge.crypto.errors import SecAggError
from edge.homomorphic.config import CkksConfig
from edge.homomorphic.participant import CkksParticipant
from edge.homomorphic.schemes import Scheme
from edge.learning.updates import ClientUpdate
from edge.secagg.config import CountPart, RealPart
from edge.secagg.participant import CryptoWork
from edge.wire.codec import decode, encode
from edge.wire.messages import DecryptedSum, DecryptRequest

RUN = "run"
ROUND = 3
CLIP = 2.0


def small_config(**changes: Any) -> CkksConfig:
    settings: dict[str, Any] = {
        "parts": (
            RealPart("factors", 6, CLIP),
            CountPart("touched", 3, 1),
            CountPart("examples", 1, 100),
            RealPart("loss", 1, 64.0),
        ),
        "n_max": 10,
        "weight_max": 7,
    }
    return CkksConfig(**(settings | changes))


def long_config() -> CkksConfig:
    """Of two ciphertexts, the second hardly filled."""
    return CkksConfig((RealPart("factors", 4_100, CLIP),), n_max=10, weight_max=7)


def weight_of(device: int) -> int:
    return device % 7 + 1


def update_of(config: CkksConfig, device: int) -> ClientUpdate:
    """Return an update as methods make them: real arrays are multiplied by the weight."""
    random = np.random.default_rng(device)
    weight = weight_of(device)
    arrays: dict[str, Any] = {}
    for part in config.parts:
        if part.name in ("examples", "loss"):
            continue
        if isinstance(part, RealPart):
            drawn = random.uniform(-part.clip, part.clip, (2, part.length // 2)).astype(np.float32)
            arrays[part.name] = np.float32(weight) * drawn
        else:
            arrays[part.name] = random.integers(0, part.value_max + 1, part.length)
    return ClientUpdate(arrays, float(weight), 10 + device, 0.25 * (device % 9))


class Sent(NamedTuple):
    """A frame on its way: the device that sends or gets it, its type and its length in bytes."""

    device: int
    kind: str
    frame_bytes: int


def with_arrays(message: Any, **arrays: Any) -> Any:
    """Return a copy of ``message`` with arrays replaced, added, or (None) removed."""
    changed = {name: array for name, array in (message.arrays | arrays).items() if array is not None}
    return message._replace(arrays=changed)


class Fleet:
    """Devices, a coordinator, and the frames between them."""

    def __init__(
        self,
        scheme: Scheme,
        devices: Sequence[int] | int,
        config: CkksConfig | None = None,
        *,
        target: int | None = None,
    ) -> None:
        self.devices = list(range(devices)) if isinstance(devices, int) else list(devices)
        self.config = small_config() if config is None else config
        self.server = CkksServer(
            self.config,
            scheme.public,
            run_id=RUN,
            round_number=ROUND,
            devices=self.devices,
            target=target,
        )
        self.participants = {
            device: CkksParticipant(self.config, scheme.secret, device=device, run_id=RUN, round_number=ROUND)
            for device in self.devices
        }
        self.inbox: list[tuple[int, bytes]] = []
        """Frames on their way to devices."""
        self.sent: list[Sent] = []
        """Every frame, in either direction, in order."""
        self.work: dict[int, CryptoWork] = {}
        """The last work of each device."""

    def update(self, device: int) -> ClientUpdate:
        return update_of(self.config, device)

    def to_server(self, sender: int, message: Any) -> Step:
        frame = encode(message)
        self.sent.append(Sent(sender, type(message).__name__, len(frame)))
        step = self.server.receive(sender, decode(frame))
        self.post(step)
        return step

    def post(self, step: Step) -> None:
        for receiver, message in step.send:
            frame = encode(message)
            self.sent.append(Sent(receiver, type(message).__name__, len(frame)))
            self.inbox.append((receiver, frame))

    def input(self, device: int) -> Any:
        answer = self.participants[device].begin(self.update(device))
        self.work[device] = answer.work
        return answer.message

    def contribute(self, devices: Iterable[int] | None = None) -> None:
        for device in self.devices if devices is None else devices:
            assert self.to_server(device, self.input(device)).refused is None

    def lose(self, device: int) -> None:
        self.post(self.server.lost(device))

    def deadline(self) -> None:
        self.post(self.server.deadline_passed(self.server.state))

    def asked(self) -> DecryptRequest:
        """Take the one frame that is on its way to a device, which must be a request to decrypt."""
        ((_, frame),) = self.inbox
        self.inbox = []
        message = decode(frame)
        assert isinstance(message, DecryptRequest)
        return message

    def decrypted(self, request: DecryptRequest) -> DecryptedSum:
        """Return the sum that the device sends which was asked."""
        answer = self.participants[request.device].receive(request)
        assert answer is not None
        assert isinstance(answer.message, DecryptedSum)
        self.work[request.device] = answer.work
        return answer.message

    def finish(self) -> None:
        """Let the device that is asked answer."""
        request = self.asked()
        step = self.to_server(request.device, self.decrypted(request))
        assert step == Step([])

    def notices(self) -> dict[int, str]:
        """Take what is on its way to devices, which must be aborts; return the reasons."""
        arrived, self.inbox = self.inbox, []
        reasons = {}
        for device, frame in arrived:
            message = decode(frame)
            assert self.participants[device].receive(message) is None
            assert self.participants[device].over
            reasons[device] = self.participants[device].failure
        return reasons

    def check_sum(self, contributors: Iterable[int]) -> None:
        """The sum over ``contributors``, up to half a step of rounding for each of them."""
        expected = sorted(contributors)
        sums = self.server.sums()
        assert sorted(self.server.contributors) == expected
        assert sums.contributors == len(expected)
        assert sums.weight == sum(map(weight_of, expected))
        updates = [self.update(device) for device in expected]
        for part in self.config.parts:
            if part.name == "examples":
                assert sums.counts[part.name].tolist() == [sum(update.examples for update in updates)]
            elif part.name == "loss":
                total = sum(update.loss * update.examples for update in updates)
                error = len(updates) * part.clip / self.config.levels
                np.testing.assert_allclose(sums.reals[part.name], [total], rtol=0, atol=error)
            elif isinstance(part, RealPart):
                total = sum(update.arrays[part.name].astype(np.float64) for update in updates)
                # float32 over the weight costs more than the steps do: half a unit in the last place.
                error = sum(part.clip * update.weight * 2.0**-24 for update in updates)
                np.testing.assert_allclose(sums.reals[part.name], np.ravel(total), rtol=0, atol=error)
            else:
                counted = sum(update.arrays[part.name] for update in updates)
                np.testing.assert_array_equal(sums.counts[part.name], counted)


def refusal(step: Step) -> type[SecAggError] | None:
    return None if step.refused is None else type(step.refused)
