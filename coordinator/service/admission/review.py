"""Asks now and then whether those who are here may stay: a token may expire or be revoked meanwhile."""

from __future__ import annotations

import asyncio

from coordinator.service.doors import quiet_logger
from coordinator.service.hooks import AdmissionError
from coordinator.service.sessions import Sessions
from edge.core.vocabulary import Reason

_LOGGER = quiet_logger()
REVIEW_S = 5.0
"""How often; a revoked device is gone after so long."""
_AT_A_TIME = 32
"""Sessions that are asked about before others have their turn."""


async def keep_reviewing(sessions: Sessions) -> None:
    """Review all sessions every few seconds, until cancelled or a bug, which is raised."""
    while True:
        await asyncio.sleep(REVIEW_S)
        try:
            await review(sessions)
        except AdmissionError:
            _LOGGER.exception("it could not be told who may stay; everybody does for now")
        except Exception as error:
            sessions.crashed("while it was asked who may stay", error)
            return


async def review(sessions: Sessions) -> None:
    """End the session of everybody who may not be here any more.

    Raises
    ------
    AdmissionError : it cannot be told.
    """
    for place, session in enumerate(sessions.all()):
        if place % _AT_A_TIME == _AT_A_TIME - 1:
            await asyncio.sleep(0)
        why = sessions.admission.refusal(session.device, session.enrolment)
        if why is not None:
            sessions.end(session, Reason.SESSION_ENDED, why)
