"""Invitations on their way: how long it takes until devices are reached, and what the log says of it.

An invitation that nothing can meet on its way needs no following: when it arrives is known as soon as it is
sent, and it is recorded at once, with those of all other devices.
"""

from __future__ import annotations

import functools
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from coordinator.engine.active_round import Broadcast
from coordinator.scenario.rounds_section import Retry
from edge.core.log import WIDTH, Column
from edge.core.vocabulary import Direction, EventKind, Fate, Reason, Stage
from edge.device.simulated import CohortPlan
from edge.network.cohort import CohortLinks
from edge.network.loss import MAX_BACKOFFS
from edge.network.tcp import SYN_BYTES

Bools = npt.NDArray[np.bool_]
Floats = npt.NDArray[np.float64]
Ids = npt.NDArray[np.int64]


class SentInvitations(NamedTuple):
    """The invitations of a cohort, of which n devices were to have one.

    ``recorded`` bool [n], those that need no following; ``arrives`` bool [n], those that reach their device,
    at ``arrival_s`` float64 [n]; ``handshake_bytes`` of a new connection; ``retransmitted_bytes`` int64 [n],
    what lost packets take again.
    """

    invitation: Broadcast
    recorded: Bools
    arrives: Bools
    arrival_s: Floats
    handshake_bytes: int
    retransmitted_bytes: Ids


@functools.lru_cache(maxsize=16)
def pauses_s(retry: Retry) -> Floats:
    """Return when each attempt to connect begins, float64 [attempts], seconds after the first."""
    pauses = retry.first_backoff * retry.factor ** np.arange(retry.attempts - 1)
    return np.concatenate(([0.0], np.cumsum(pauses)))


def connect_delays(retry: Retry, plan: CohortPlan, connected: Bools) -> tuple[Floats, Bools]:
    """Return the pauses before each device's connection succeeds, and whether it does at all.

    Whoever is ``connected`` still has no attempt that fails, in the ``plan`` too.
    """
    failures = plan.failed_connects
    failures[connected] = 0
    return pauses_s(retry)[np.minimum(failures, retry.attempts - 1)], failures < retry.attempts


def invitation_rows(
    ids: Ids, now_s: float, plan: CohortPlan, links: CohortLinks, retry: Retry, sent: SentInvitations
) -> npt.NDArray[np.float64]:
    """Return the records of the invitations that need no following, and of the retries of all.

    Parameters
    ----------
    ids : int64 [n], the devices.
    now_s : when they are invited, absolute seconds.
    plan, links : what the round will be like for them, and their connections.
    retry : how often is tried to connect.
    sent : the invitations.

    Returns
    -------
    Rows of the log, float64 [records, :data:`~edge.core.log.WIDTH`].
    """
    failures = np.minimum(plan.failed_connects, retry.attempts)
    # A failed attempt is a SYN without an answer; where TCP itself gives up it has sent many.
    gave_up = np.isinf(np.array(links.handshake_s)) & (failures < retry.attempts)
    invited = _invited_rows(ids, now_s, plan, links, sent)
    if not failures.any() and not gave_up.any():
        return invited
    silent = failures + np.where(gave_up, MAX_BACKOFFS + 1, 0)
    return np.concatenate((_failed_rows(ids, now_s, plan.reachable, failures, silent, retry), invited))


def _new_rows(count: int, now_s: float) -> Floats:
    rows = np.zeros((count, WIDTH))
    rows[:, Column.TIME_S] = rows[:, Column.START_S] = rows[:, Column.END_S] = now_s
    rows[:, Column.STAGE] = Stage.INVITE.value
    return rows


def _failed_rows(
    ids: Ids, now_s: float, reachable: Bools, failures: Ids, silent: Ids, retry: Retry
) -> Floats:
    """Return the records of retries, followed by those of connection attempts without an answer.

    ``failures`` and ``silent`` are int64 [n]: attempts in vain, and packets sent in them.
    """
    tries = np.where(reachable, np.minimum(failures, retry.attempts - 1), 0)
    retried = np.repeat(np.arange(len(tries)), tries)
    nth = np.arange(len(retried)) - np.repeat(np.cumsum(tries) - tries, tries)
    refused = np.flatnonzero(reachable & (silent > 0))
    rows = _new_rows(len(retried) + len(refused), now_s)
    retries, unanswered = rows[: len(retried)], rows[len(retried) :]
    begins_s = pauses_s(retry)
    retries[:, Column.SLOT] = retried
    retries[:, Column.DEVICE] = ids[retried]
    retries[:, Column.KIND] = EventKind.RETRY.value
    retries[:, Column.START_S] = now_s + begins_s[nth]
    retries[:, Column.END_S] = now_s + begins_s[nth + 1]
    retries[:, Column.REASON] = Reason.CONNECTION_LOST.value

    unanswered[:, Column.SLOT] = refused
    unanswered[:, Column.DEVICE] = ids[refused]
    unanswered[:, Column.KIND] = EventKind.HANDSHAKE.value
    unanswered[:, Column.DIRECTION] = Direction.UP.value
    unanswered[:, Column.TCP_IP_BYTES] = silent[refused] * SYN_BYTES
    unanswered[:, Column.FATE] = Fate.LOST.value
    unanswered[:, Column.REASON] = Reason.CONNECTION_LOST.value
    return rows


def _invited_rows(
    ids: Ids, now_s: float, plan: CohortPlan, links: CohortLinks, sent: SentInvitations
) -> Floats:
    """Return the records of the invitations that need no following."""
    reachable = plan.reachable
    slots = sent.recorded.nonzero()[0]
    invited = _new_rows(len(slots), now_s)
    ok = sent.arrives[slots]
    handshake = np.where(links.connected, 0, sent.handshake_bytes)
    invited[:, Column.SLOT] = slots
    invited[:, Column.DEVICE] = ids[slots]
    invited[:, Column.KIND] = EventKind.INVITED.value
    invited[:, Column.DIRECTION] = Direction.DOWN.value
    invited[:, Column.END_S] = np.where(ok, sent.arrival_s[slots], now_s)
    invited[:, Column.PAYLOAD_BYTES] = sent.invitation.payload_bytes
    framing_bytes = sent.invitation.frame_bytes - sent.invitation.payload_bytes
    invited[:, Column.FRAMING_BYTES] = np.where(ok, framing_bytes, 0)
    invited[:, Column.RETRANSMITTED_BYTES] = sent.retransmitted_bytes[slots]
    # A device that is away is tried once, in vain.
    in_vain = np.where(reachable, 0, SYN_BYTES)[slots]
    overhead = (links.prepared.overhead_bytes[0] + handshake)[slots]
    invited[:, Column.TCP_IP_BYTES] = np.where(ok, overhead, in_vain)
    invited[:, Column.FATE] = np.where(ok, Fate.DELIVERED.value, Fate.LOST.value)
    failed = np.where(reachable[slots], Reason.RETRIES_EXHAUSTED.value, Reason.UNAVAILABLE.value)
    invited[:, Column.REASON] = np.where(ok, Reason.NONE.value, failed)
    return invited
