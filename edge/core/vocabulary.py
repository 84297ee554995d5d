"""The names and numbers of everything that is counted: stages, outcomes, reasons, events, fates.

The numbers are written into logs, tables and frames, so they are stable: a name is only ever appended, at
the end of its enum and with the next number; none is renumbered, renamed or reused. :func:`label` gives the
spelling that tables, summaries and scenario files show.
"""

from __future__ import annotations

import enum
from typing import Final


class Stage(enum.IntEnum):
    """A step of a device's participation in a round.

    In the clear a device goes from ``COMPUTE`` to ``REPORT``. With secure aggregation the stages from
    ``ADVERTISE_KEYS`` to ``UNMASK`` take the place of ``REPORT``; with homomorphic encryption
    ``MASKED_INPUT`` and ``UNMASK`` do. ``ACKNOWLEDGE`` is the last in any case.
    """

    INVITE = 0
    """Invitation on its way down, the device's answer on its way up."""
    DOWNLOAD = 1
    """The global model on its way down."""
    COMPUTE = 2
    """Reconstruction and client update on the device."""
    REPORT = 3
    """The client update on its way up."""
    ACKNOWLEDGE = 4
    """The coordinator's receipt on its way down, or either side's notice that it gives up."""
    ADVERTISE_KEYS = 5
    """Secure aggregation: the device's fresh keys on their way up; its update is ready."""
    SHARE_KEYS = 6
    """Secure aggregation: others' keys on their way down, sealed shares of the secrets up."""
    MASKED_INPUT = 7
    """Secure aggregation: the neighbours' shares down, the masked (or encrypted) update up."""
    CONSISTENCY = 8
    """Secure aggregation, active mode: the survivors on their way down, a signature under them up."""
    UNMASK = 9
    """Secure aggregation: the request for shares down, the shares up; or the encrypted sum and the sum."""


SUM_STAGES: Final = (
    Stage.ADVERTISE_KEYS,
    Stage.SHARE_KEYS,
    Stage.MASKED_INPUT,
    Stage.CONSISTENCY,
    Stage.UNMASK,
)
"""The stages of a secure sum, in order."""


FIRST_EVALUATION: Final = 1 << 30
"""Rounds with this number or a higher one are evaluations: this plus r measures the model after round r."""

MEAN_QUERIES: Final = 3
"""How often devices are asked for the mean rating at most, until a sum of enough of them comes about."""

FIRST_QUERY: Final = FIRST_EVALUATION - MEAN_QUERIES
"""Rounds with this number or a higher one ask for sums and change no model: queries of the mean rating up to
:data:`FIRST_EVALUATION`, then evaluations."""


class RoundKind(enum.Enum):
    """What devices are asked for in a round, which its number says."""

    TRAINING = "training"
    MEAN_QUERY = "mean query"
    """Count and sum of their training ratings."""
    EVALUATION = "evaluation"
    """What they measure of the model."""

    @classmethod
    def of(cls, round_number: int) -> RoundKind:
        """Return the kind of a round."""
        if round_number < FIRST_QUERY:
            return cls.TRAINING
        return cls.MEAN_QUERY if round_number < FIRST_EVALUATION else cls.EVALUATION


def finished_rounds(round_number: int) -> int:
    """Return how many rounds of training have ended before one of another kind; of training, its number.

    Of a query it is below 0.
    """
    return round_number if round_number < FIRST_QUERY else round_number - FIRST_EVALUATION


class Outcome(enum.IntEnum):
    """How a device's participation in a round ended."""

    COMPLETED = 0
    """Its report was applied to the model."""
    LATE = 1
    """Its report arrived after the round was closed by the deadline; not applied."""
    DROPPED = 2
    """It went away during the round."""
    DECLINED = 3
    """It answered the invitation with a no."""
    FAILED = 4
    """It stayed and could not do the work, or its report was not valid."""
    UNREACHABLE = 5
    """The invitation was never answered."""
    SURPLUS = 6
    """The round had all the reports it wanted before this one; not applied."""
    ABANDONED = 7
    """The round, or the secure sum in it, was given up; whatever the device reported was not applied."""


class RoundOutcome(enum.IntEnum):
    """How a round ended."""

    COMPLETED = 0
    """The server update was made from at least a quorum of reports."""
    ABANDONED = 1
    """No server update; the reason says why."""


class Reason(enum.IntEnum):
    """Why something did not go as intended."""

    NONE = 0
    UNAVAILABLE = 1
    """The device was not available: its owner's habits, screen on, no Wi-Fi …"""
    BATTERY = 2
    """The battery was too low."""
    MEMORY = 3
    """The task needs more memory than the device has."""
    VANISHED = 4
    """The device disappeared without a word."""
    CONNECTION_LOST = 5
    """The link failed during a transfer."""
    DEADLINE = 6
    """The round's deadline passed."""
    STALE = 7
    """A frame of another round or run."""
    DUPLICATE = 8
    """A frame that had been received before."""
    GARBAGE = 9
    """Bytes that are not a valid frame, or a frame with invalid contents."""
    NOT_INVITED = 10
    """A frame from a device that is not part of the round."""
    SESSION_ENDED = 11
    """The period in which the device was available ended."""
    RETRIES_EXHAUSTED = 12
    """Every permitted attempt failed."""
    COHORT_FULL = 13
    """The round already had the reports it wanted."""
    QUORUM = 14
    """Fewer reports than the quorum."""
    NO_DATA = 15
    """The device holds nothing to train on."""
    NOT_FINITE = 16
    """An update with NaN or infinite values."""
    WRONG_STAGE = 17
    """A valid frame at a time when the protocol does not allow it."""
    THRESHOLD = 18
    """Too few devices were left for secure aggregation to be safe, or to finish."""
    PROTOCOL = 19
    """Somebody broke the protocol of secure aggregation, and it was noticed."""
    OTHER_WAY = 20
    """The device takes part the other way: its update was reported in the clear, or is in a secure sum."""
    CONNECTION_RESET = 21
    """The connection was torn down, and both ends noticed at once."""
    COORDINATOR_CRASH = 22
    """The coordinator crashed, and everything under way with it."""
    OUT_OF_RANGE = 23
    """A report with a number outside its range."""
    WRONG_SUM = 24
    """The sum cannot be that of the updates that it was made of."""
    ALREADY_ANSWERED = 25
    """The device has answered the round, or a later one of the run, before."""
    BUDGET_SPENT = 26
    """The device has answered as many rounds, or spent as much privacy, as it is allowed in the run."""


class EventKind(enum.IntEnum):
    """What a record of the log tells."""

    INVITED = 0
    """An invitation travelled down."""
    ACCEPTED = 1
    """An acceptance travelled up."""
    DECLINED = 2
    """A refusal travelled up; the reason says why."""
    MODEL = 3
    """The global model travelled down."""
    COMPUTED = 4
    """The device computed, from start to end; nothing travelled."""
    REPORT = 5
    """A client update travelled up."""
    ACKNOWLEDGED = 6
    """The receipt of a report travelled down."""
    DROPPED = 7
    """The device went away; the stage says where, the reason why."""
    RETRY = 8
    """A transfer is tried again after a back-off; nothing travelled."""
    LATE = 9
    """A report, or a message in its place, travelled up and arrived after its stage or round was closed."""
    DUPLICATE = 10
    """A frame travelled that had been received before."""
    STALE = 11
    """A frame of another round or run travelled."""
    GARBAGE = 12
    """Bytes travelled that are not a valid frame."""
    FAILED = 13
    """The device could not do its work; the reason says why."""
    HANDSHAKE = 14
    """A connection was set up; the bytes are all TCP/IP and TLS."""
    KEYS = 15
    """A device's keys for secure aggregation travelled up."""
    KEY_LIST = 16
    """The keys of others travelled down."""
    SEALED_SHARES = 17
    """The shares that a device sealed for its neighbours travelled up."""
    SHARES = 18
    """The shares that its neighbours sealed for a device travelled down."""
    MASKED_INPUT = 19
    """A masked update travelled up."""
    SURVIVORS = 20
    """The list of the survivors, to be signed, travelled down."""
    SIGNATURE = 21
    """A signature under the survivors travelled up."""
    UNMASK_REQUEST = 22
    """The request for shares travelled down."""
    UNMASK_SHARES = 23
    """Released shares travelled up."""
    ABORTED = 24
    """A notice travelled that secure aggregation ends here for a device."""
    ENCRYPTED_INPUT = 25
    """An encrypted update travelled up."""
    DECRYPT_REQUEST = 26
    """The encrypted sum travelled down to a device that can decrypt it."""
    DECRYPTED_SUM = 27
    """The decrypted sum travelled up."""
    SUSPENDED = 28
    """The coordinator suspended the device: it is not invited any more; the reason says why."""


class Way(enum.IntEnum):
    """How an update comes to the coordinator."""

    CLEAR = 0
    """As a report that the coordinator reads."""
    SECURE = 1
    """Masked or encrypted, so that only a sum can be read."""


class Direction(enum.IntEnum):
    """Which way bytes travelled."""

    NONE = 0
    DOWN = 1
    """From the coordinator to the device."""
    UP = 2
    """From the device to the coordinator."""


class Fate(enum.IntEnum):
    """What became of bytes that were sent: every byte sent has exactly one of these."""

    DELIVERED = 0
    """Arrived and used."""
    LOST = 1
    """Never arrived."""
    DISCARDED = 2
    """Arrived and thrown away: late, duplicate, stale, garbage, surplus."""


def label(code: enum.IntEnum) -> str:
    """Return the spelling shown to people: ``CONNECTION_LOST`` is ``"connection-lost"``."""
    return code.name.lower().replace("_", "-")


def labels(vocabulary: type[enum.IntEnum]) -> tuple[str, ...]:
    """Return the spellings of a whole enum, the position being the number."""
    return tuple(label(code) for code in vocabulary)
