"""The shares that devices release, the masks that they take off the sum, and what comes out."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from coordinator.secure.secagg.cohort import Flags, NeighbourGraph
from edge.crypto.errors import (
    AuthenticationError,
    CommitmentMismatchError,
    InconsistentSharesError,
    KeyMismatchError,
    SecAggError,
    SumMismatchError,
    TooFewSurvivorsError,
    WrongShareError,
)
from edge.crypto.keys import SIGNATURE_BYTES, KeyPair, PairSecrets, check_commitment, check_secret
from edge.crypto.prg import add_all_expanded, make_scratch
from edge.crypto.ring import RingVector
from edge.crypto.shamir import SECRET_BYTES, SHARE_BYTES, combine_many, decode
from edge.secagg.checks import OCTETS, DeviceIds, Octets, expect_arrays, octets, read, read_devices
from edge.secagg.config import RealPart, SecAggConfig
from edge.secagg.cryptography import pair_seed, self_seed
from edge.secagg.inputs import read_tail
from edge.secagg.keylist import expect_neighbours
from edge.secagg.sealing import COMMITMENT_BYTES, commit_share
from edge.wire.messages import Arrays, UnmaskRequest, UnmaskShares

_MASKS_AT_ONCE = 256
"""Masks removed in one pass over the sum."""


class Unmasking:
    """Collects shares until every secret that the sum needs is rebuilt, then removes the masks.

    Of a device that contributed the self-mask seed is needed, of one that shared and did not contribute the
    mask key, if any of its neighbours contributed: one or the other, never both.

    Parameters
    ----------
    cohort : who takes part.
    round_number : the round.
    shared : bool[n], who shared its secrets.
    alive : bool[n], whose input is in the sum.
    asked : bool[n], who was asked for shares.
    commitments : uint8[n, k + 1, 32], of each owner to the shares of each of its holders.
    pairs : how the secrets of pairs are derived.

    Attributes
    ----------
    wrong : by id, who was found to have released a wrong share, sealed garbage, or shared another secret than
        it advertised, each with the error.

    Raises ``TooFewSurvivorsError`` if those who were asked cannot rebuild some secret.
    """

    def __init__(
        self,
        cohort: NeighbourGraph,
        round_number: int,
        shared: Flags,
        alive: Flags,
        asked: Flags,
        commitments: Octets,
        pairs: PairSecrets,
    ) -> None:
        self._pairs = pairs
        self._cohort = cohort
        self._round_number = round_number
        self._shared = shared
        self._alive = alive
        self._needed: Flags = shared & (cohort.around_each(alive) > 0)
        self.expect_enough(asked)
        self._shares = np.zeros((*cohort.holders.shape, SHARE_BYTES), dtype=np.uint8)
        self._have = np.zeros(cohort.holders.shape, dtype=np.bool_)
        self._count = np.zeros(len(cohort), dtype=np.int64)
        self._unopened = np.zeros(len(cohort), dtype=np.int64)
        """How many holders could not open their share of each device."""
        self._commitments = commitments
        self.wrong: dict[int, SecAggError] = {}
        self._seeds: dict[int, bytes] = {}
        """Self-mask seeds that were rebuilt, by position."""
        self._keys: dict[int, KeyPair] = {}
        """Mask keys that were rebuilt, by position."""

    def expect_enough(self, holders: Flags) -> None:
        """Raise ``TooFewSurvivorsError`` if ``holders`` are too few for a secret that is needed."""
        short = np.flatnonzero(self._needed & (self._cohort.around_each(holders) < self._cohort.t))
        if short.size:
            device = int(self._cohort.devices[short[0]])
            raise TooFewSurvivorsError(
                f"{self._cohort.around(int(short[0]), holders)} survivors hold shares of device {device}; "
                f"the threshold is {self._cohort.t}"
            )

    def requests(
        self, run_id: str, asked: Flags, signatures: Mapping[int, bytes] | None
    ) -> Iterator[tuple[int, UnmaskRequest]]:
        """Yield the request for each device that is asked (bool[n]).

        ``signatures`` under the survivors are of those that are asked, by id; None: nobody signs.
        """
        cohort, survivors = self._cohort, int(np.count_nonzero(self._alive))
        for at in np.flatnonzero(asked).tolist():
            holders, device = cohort.holders[at], int(cohort.devices[at])
            arrays: Arrays = {"dead": cohort.devices[holders[self._shared[holders] & ~self._alive[holders]]]}
            if signatures is not None:
                signers = cohort.devices[holders[asked[holders] & (holders != at)]]
                signed = b"".join(signatures[signer] for signer in signers.tolist())
                arrays["signers"] = signers
                arrays["signatures"] = octets(signed).reshape(-1, SIGNATURE_BYTES)
            yield device, UnmaskRequest(run_id, self._round_number, device, survivors, arrays)

    @property
    def complete(self) -> bool:
        """Say whether there are shares enough of every secret that is needed."""
        return not bool((self._needed & (self._count < self._cohort.t)).any())

    def take(self, position: int, message: UnmaskShares) -> None:
        """Keep the shares of one device: a row for itself and each neighbour that shared, ascending.

        There is no row for a neighbour whose share it could not open.

        Raises ``MalformedMessageError``, ``NotNeighbourError``, ``WrongLengthError``, ``WrongDtypeError`` and
        ``ShareValueError``; nothing is kept then.
        """
        cohort = self._cohort
        columns = np.flatnonzero(self._shared[cohort.holders[position]])
        owners = cohort.holders[position, columns]
        expect_arrays(message.arrays, "shares", "unopened")
        unopened = read_devices(message.arrays, "unopened")
        others = frozenset(cohort.devices[owners[owners != position]].tolist())
        expect_neighbours(unopened, others, "the list of what did not open")
        opened = ~np.isin(cohort.devices[owners], unopened)
        released, slots = owners[opened], cohort.slots[position, columns]
        rows = read(message.arrays, "shares", OCTETS, (len(released), SHARE_BYTES))
        if rows[:, SECRET_BYTES:].any():
            # Only rows with such marks can be invalid, and few have any.
            decode([row.tobytes() for row in rows])
        self._shares[released, slots[opened]] = rows
        self._have[released, slots[opened]] = True
        self._count[released] += 1
        self._unopened[owners[~opened]] += 1

    def rebuild(self) -> None:
        """Rebuild the secrets that are needed and not rebuilt yet, from the shares that are there.

        A secret that is not what its owner advertised has a wrong share in it, which its owner's commitments
        find. Wrong shares are dropped and their holders are in :attr:`wrong`; :attr:`complete` may say no
        afterwards: then more shares are needed.

        Raises ``CommitmentMismatchError``, ``KeyMismatchError`` and ``InconsistentSharesError``, with the
        owner as ``culprit``, where every share is what the owner committed to and the secret is not; all such
        owners are then in :attr:`wrong`.
        """
        again = True
        while again:
            again = False
            guilty: dict[int, SecAggError] = {}
            for position, secret in self._combined():
                error = self._accept(position, secret)
                if error is None:
                    continue
                if self._drop_wrong(position):
                    again = again or bool(self._count[position] >= self._cohort.t)
                else:
                    error.culprit = owner = int(self._cohort.devices[position])
                    guilty[owner] = error
            if guilty:
                self.wrong |= guilty
                raise next(iter(guilty.values()))

    def shortage(self) -> SecAggError:
        """Return why not all secrets can be rebuilt, when no more shares will come.

        In :attr:`wrong` are then all owners whose shares more of their holders could not open than may be
        missing: they sealed garbage, as long as fewer of their holders collude than that.
        """
        cohort = self._cohort
        short = np.flatnonzero(self._needed & (self._count < cohort.t))
        garbage = short[self._unopened[short] > cohort.k + 1 - cohort.t]
        found: dict[int, SecAggError] = {}
        for at in garbage.tolist():
            owner = int(cohort.devices[at])
            found[owner] = error = AuthenticationError(
                f"what device {owner} sealed does not open, or is not what it committed to, at "
                f"{self._unopened[at]} of its {cohort.k} neighbours"
            )
            error.culprit = owner
        if found:
            self.wrong |= found
            return next(iter(found.values()))
        position, device = int(short[0]), int(cohort.devices[short[0]])
        left = f"{self._count[position]} shares of device {device} are left; the threshold is {cohort.t}"
        if self.wrong:
            return WrongShareError(f"devices {sorted(self.wrong)} released wrong shares; {left}")
        return TooFewSurvivorsError(f"too few survivors answered the unmask request: {left}")

    def remove_masks(self, total: RingVector) -> None:
        """Take every mask off ``total`` in place: what is left is the sum of the inputs.

        Every secret that is needed has been rebuilt.
        """
        scratch = make_scratch()
        added: list[bytes] = []
        subtracted: list[bytes] = []
        for position in np.flatnonzero(self._needed).tolist():
            if self._alive[position]:
                device = int(self._cohort.devices[position])
                seed = self._seeds[position]
                subtracted.append(self_seed(seed, self._cohort.session, self._round_number, device))
            else:
                self._pair_seeds(position, added, subtracted)
            if len(added) + len(subtracted) >= _MASKS_AT_ONCE:
                add_all_expanded(total, added, subtracted, scratch=scratch)
                added.clear()
                subtracted.clear()
        add_all_expanded(total, added, subtracted, scratch=scratch)

    def _combined(self) -> Iterator[tuple[int, bytes | None]]:
        """Yield position and secret of every device of which one is needed, not rebuilt, and can be.

        The secret is None where the shares are of none.
        """
        t = self._cohort.t
        # Secrets whose shares have the same indices have the same Lagrange coefficients.
        alike: defaultdict[tuple[int, ...], list[int]] = defaultdict(list)
        for position in np.flatnonzero(self._needed & (self._count >= t)).tolist():
            if position not in self._seeds and position not in self._keys:
                columns: npt.NDArray[np.int64] = np.flatnonzero(self._have[position])[:t]
                alike[tuple(columns.tolist())].append(position)
        for columns_used, positions in alike.items():
            yield from zip(positions, self._combine(columns_used, positions), strict=True)

    def _combine(self, columns: tuple[int, ...], positions: list[int]) -> list[bytes | None]:
        rows = self._shares[np.array(positions)[:, np.newaxis], list(columns)]
        shares = [[share.tobytes() for share in row] for row in rows]
        indices = [column + 1 for column in columns]
        try:
            return [*combine_many(indices, shares, self._cohort.t, n=self._cohort.k + 1)]
        except InconsistentSharesError:
            if len(positions) == 1:
                return [None]
            return [secret for position in positions for secret in self._combine(columns, [position])]

    def _accept(self, position: int, secret: bytes | None) -> SecAggError | None:
        """Keep a secret that its owner advertised; return what is wrong with any other."""
        device, record = int(self._cohort.devices[position]), self._cohort.records[position]
        if secret is None:
            return InconsistentSharesError(f"the shares of device {device} do not belong to one secret")
        try:
            if self._alive[position]:
                check_commitment(secret, record.commitment, device=device, round_number=self._round_number)
                self._seeds[position] = secret
            else:
                self._keys[position] = check_secret(secret, record.mask)
        except (CommitmentMismatchError, KeyMismatchError) as error:
            return error
        return None

    def _drop_wrong(self, position: int) -> bool:
        """Drop the shares of an owner that are not what it committed to; say whether there were any."""
        cohort, owner = self._cohort, int(self._cohort.devices[position])
        which = 0 if self._alive[position] else COMMITMENT_BYTES
        before = int(self._count[position])
        for column in np.flatnonzero(self._have[position]).tolist():
            holder = int(cohort.devices[cohort.holders[position, column]])
            committed = self._commitments[position, column, which : which + COMMITMENT_BYTES].tobytes()
            share = self._shares[position, column].tobytes()
            if commit_share(share, cohort.session, owner, holder) != committed:
                self._have[position, column] = False
                self._count[position] -= 1
                self.wrong[holder] = WrongShareError(
                    f"device {holder} released another share of device {owner} than it was given"
                )
        return bool(self._count[position] < before)

    def _pair_seeds(self, position: int, added: list[bytes], subtracted: list[bytes]) -> None:
        """Append the seeds of the masks that the dead device's living neighbours put on their inputs."""
        cohort = self._cohort
        dead, key = int(cohort.devices[position]), self._keys[position]
        holders = cohort.holders[position]
        for other in holders[self._alive[holders]].tolist():
            device = int(cohort.devices[other])
            public = cohort.records[other].mask
            seed = pair_seed(key, public, cohort.session, self._round_number, dead, device, self._pairs)
            # The lower id of a pair added the mask, the higher subtracted it.
            (subtracted if device < dead else added).append(seed)


class SecAggResult(NamedTuple):
    """The outcome of a round.

    ``total`` is the sum in the ring, [L]; :func:`edge.secagg.inputs.decode_sum` gives its vectors. ``weight``
    and ``contributors`` are read from it. ``survivors`` are the ids of those whose inputs are in it, ``dead``
    of those that shared their secrets and did not contribute, int64, ascending.
    """

    total: RingVector
    weight: int
    contributors: int
    survivors: DeviceIds
    dead: DeviceIds


def read_sum(config: SecAggConfig, total: RingVector, survivors: DeviceIds, dead: DeviceIds) -> SecAggResult:
    """Return the outcome in an unmasked ``total``, [L].

    Raises ``SumMismatchError`` if it was not made from one input of each survivor: masks that do not cancel
    leave noise, which says so with probability 1 − 2**−bits. A total weight that somebody made too small for
    the updates is found by elements that are larger than so much weight allows.
    """
    weight, contributors = read_tail(config, total)
    if contributors != len(survivors) or not 0 <= weight <= len(survivors) * config.weight_max:
        raise SumMismatchError(
            f"the sum says {contributors} contributors of weight {weight}; {len(survivors)} inputs "
            f"were added, of weight up to {config.weight_max} each"
        )
    whole, start = config.ring.to_signed(total), 0
    for part in config.parts:
        values = whole[start : start + part.length]
        if isinstance(part, RealPart):
            quantizer = config.quantizers[part.name]
            largest = weight * quantizer.levels + contributors * quantizer.noise_levels
        else:
            largest = contributors * part.value_max
        if max(int(values.max()), -int(values.min())) > largest:
            raise SumMismatchError(f"part {part.name!r} of the sum is beyond what its inputs can add up to")
        start += part.length
    return SecAggResult(total, weight, contributors, survivors, dead)
