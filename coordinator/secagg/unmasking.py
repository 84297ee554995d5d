"""The shares that devices release, and the masks that they take off the sum."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping

import numpy as np
import numpy.typing as npt

from coordinator.secagg.cohort import Cohort, Flags
from edge.messages import Arrays
from edge.secagg.checks import OCTETS, octets, read
from edge.secagg.errors import TooFewSurvivorsError
from edge.secagg.keys import SIGNATURE_BYTES, check_commitment, check_secret
from edge.secagg.masks import pair_seed, self_seed
from edge.secagg.prg import add_all_expanded, make_scratch
from edge.secagg.ring import RingVector
from edge.secagg.shamir import SECRET_BYTES, SHARE_BYTES, combine_many, decode
from edge.secagg_messages import UnmaskRequest, UnmaskShares

_MASKS_AT_ONCE = 256
"""Masks removed in one pass over the sum."""


class Unmasking:
    """Collects shares until every secret that the sum needs can be rebuilt, then removes the masks.

    Of a device that contributed the self-mask seed is needed, of one that shared and did not contribute the
    mask key, if any of its neighbours contributed: one or the other, never both.

    Parameters
    ----------
    cohort : who takes part.
    round_number : the round.
    shared : bool[n], who shared its secrets.
    alive : bool[n], whose input is in the sum.
    asked : bool[n], who was asked for shares.

    Raises ``TooFewSurvivorsError`` if those who were asked cannot rebuild some secret.
    """

    def __init__(self, cohort: Cohort, round_number: int, shared: Flags, alive: Flags, asked: Flags) -> None:
        self._cohort = cohort
        self._round_number = round_number
        self._shared = shared
        self._alive = alive
        self._needed: Flags = shared & (cohort.around_each(alive) > 0)
        self.expect_enough(asked)
        self._shares = np.zeros((*cohort.holders.shape, SHARE_BYTES), dtype=np.uint8)
        self._have = np.zeros(cohort.holders.shape, dtype=np.bool_)
        self._count = np.zeros(len(cohort), dtype=np.int64)

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
        """Say whether every secret that is needed can be rebuilt."""
        return not bool((self._needed & (self._count < self._cohort.t)).any())

    def take(self, position: int, message: UnmaskShares) -> None:
        """Keep the shares of one device: one row for itself and each neighbour that shared, ascending.

        Raises ``WrongLengthError``, ``WrongDtypeError`` and ``ShareValueError``; nothing is kept then.
        """
        columns = np.flatnonzero(self._shared[self._cohort.holders[position]])
        rows = read(message.arrays, "shares", OCTETS, (len(columns), SHARE_BYTES))
        if rows[:, SECRET_BYTES:].any():
            # Only rows with such marks can be invalid, and few have any.
            decode([row.tobytes() for row in rows])
        owners = self._cohort.holders[position, columns]
        slots = self._cohort.slots[position, columns]
        self._shares[owners, slots] = rows
        self._have[owners, slots] = True
        self._count[owners] += 1

    def remove_masks(self, total: RingVector) -> None:
        """Take every mask off ``total`` in place: what is left is the sum of the inputs.

        Raises ``InconsistentSharesError``, ``CommitmentMismatchError`` and ``KeyMismatchError`` if shares
        were tampered with; ``total`` is of no use then.
        """
        scratch = make_scratch()
        added: list[bytes] = []
        subtracted: list[bytes] = []
        for position, secret in self._secrets():
            if self._alive[position]:
                subtracted.append(self._self_seed(position, secret))
            else:
                self._pair_seeds(position, secret, added, subtracted)
            if len(added) + len(subtracted) >= _MASKS_AT_ONCE:
                add_all_expanded(total, added, subtracted, scratch=scratch)
                added.clear()
                subtracted.clear()
        add_all_expanded(total, added, subtracted, scratch=scratch)

    def _secrets(self) -> Iterator[tuple[int, bytes]]:
        """Yield position and rebuilt secret of every device of which one is needed."""
        t, k = self._cohort.t, self._cohort.k
        # Secrets whose shares have the same indices have the same Lagrange coefficients.
        alike: defaultdict[tuple[int, ...], list[int]] = defaultdict(list)
        for position in np.flatnonzero(self._needed).tolist():
            columns: npt.NDArray[np.int64] = np.flatnonzero(self._have[position])[:t]
            alike[tuple(columns.tolist())].append(position)
        for columns_used, positions in alike.items():
            indices = [column + 1 for column in columns_used]
            rows = self._shares[np.array(positions)[:, np.newaxis], list(columns_used)]
            shares = [[share.tobytes() for share in row] for row in rows]
            yield from zip(positions, combine_many(indices, shares, t, n=k + 1), strict=True)

    def _self_seed(self, position: int, secret: bytes) -> bytes:
        device = int(self._cohort.devices[position])
        commitment = self._cohort.records[position].commitment
        check_commitment(secret, commitment, device=device, round_number=self._round_number)
        return self_seed(secret, self._cohort.session, self._round_number, device)

    def _pair_seeds(self, position: int, secret: bytes, added: list[bytes], subtracted: list[bytes]) -> None:
        """Append the seeds of the masks that the dead device's living neighbours put on their inputs."""
        cohort = self._cohort
        dead = int(cohort.devices[position])
        key = check_secret(secret, cohort.records[position].mask)
        holders = cohort.holders[position]
        for other in holders[self._alive[holders]].tolist():
            device = int(cohort.devices[other])
            public = cohort.records[other].mask
            seed = pair_seed(key, public, cohort.session, self._round_number, dead, device)
            # The lower id of a pair added the mask, the higher subtracted it.
            (subtracted if device < dead else added).append(seed)
