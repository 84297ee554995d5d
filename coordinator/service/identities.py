"""Identities of real devices, for the active mode: who holds them, and how devices come by the roster.

A device trusts two things that it was given before the run: its own identity, and the hash of the roster. The
roster itself the coordinator sends, and cannot change.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Final

import aiohttp
from aiohttp import web

from coordinator.engine.assembly import Assembly
from coordinator.secure.sums.masked import MaskedSums
from coordinator.service.hooks import Admission, AdmissionError
from edge.crypto.entropy import SystemEntropy
from edge.crypto.keys import Identity
from edge.network.sockets.device_client import Backoff
from edge.secagg.roster import Enrolled, Roster, RosterError
from edge.secagg.states import Mode

ROSTER: Final = "/v1/roster"
_BEARER: Final = "Bearer "
_LONGEST_BYTES: Final = 64 * 1024 * 1024
"""Two million identities."""


def sums_with_identities(assembly: Assembly) -> list[MaskedSums]:
    """Return the sums of a run in which devices sign."""
    return [
        sums
        for sums in assembly.all_sums()
        if isinstance(sums, MaskedSums) and sums.config.mode is Mode.ACTIVE
    ]


def enrol(
    assembly: Assembly, roster: Mapping[int, bytes], identity_of: Callable[[int], Identity] | None
) -> None:
    """Set the roster, and the identities of the devices here, in all sums of a run that need them."""
    for sums in sums_with_identities(assembly):
        sums.enrol(roster, identity_of)


def enrol_all_here(assembly: Assembly) -> None:
    """Make identities for all devices of a run, if it needs them; they are in this process alone."""
    if sums_with_identities(assembly):
        entropy = SystemEntropy()
        made = [Identity.generate(entropy) for _ in range(assembly.fleet.n)]
        enrol(assembly, Roster.of(identity.public for identity in made), made.__getitem__)


def add_roster_route(app: web.Application, roster: Roster, admission: Admission) -> None:
    """Add the address at which devices get the roster; they show what they join with."""

    async def answer(request: web.Request) -> web.StreamResponse:
        device = request.query.get("device", "")
        if not device.isascii() or not device.isdecimal() or len(device) > 18:
            return web.Response(status=400, text="write ?device=ID\n")
        token = request.headers.get("Authorization", "").removeprefix(_BEARER)
        try:
            refused = admission.refusal(int(device), token)
        except AdmissionError:
            return web.Response(status=503, text="it cannot be told now who may come in\n")
        if refused is not None:
            return web.Response(status=403, text=f"{refused}\n")
        return web.Response(body=roster.encoded, content_type="application/octet-stream")

    app.router.add_get(ROSTER, answer)


async def fetch_roster(
    http: aiohttp.ClientSession, url: str, device: int, token: str, enrolled: Enrolled, backoff: Backoff
) -> Roster:
    """Return the roster that a coordinator sends, if it is the one that devices were enrolled with.

    Parameters
    ----------
    http, url : reach the coordinator.
    device, token : of one of the devices, which may come in.
    enrolled : what the devices were given.
    backoff : how long it is tried.

    Raises
    ------
    RosterError : the coordinator has none, lets nobody have it, or has another one.
    """
    loop = asyncio.get_running_loop()
    begun_s, problem, failures = loop.time(), "", 0
    while True:
        if failures:
            pause_s = backoff.pause_s(failures, loop.time() - begun_s)
            if pause_s is None:
                raise RosterError(problem)
            await asyncio.sleep(pause_s)
        failures += 1
        try:
            async with http.get(
                url.rstrip("/") + ROSTER,
                params={"device": str(device)},
                headers={"Authorization": _BEARER + token},
                allow_redirects=False,
            ) as answer:
                status = answer.status
                data = await _read(answer) if status == web.HTTPOk.status_code else b""
        except (
            ConnectionError,
            TimeoutError,
            aiohttp.ClientConnectionError,
            aiohttp.ClientPayloadError,
        ) as error:
            # Whoever cannot be trusted is found out by the connection that follows.
            problem = f"{url} cannot be reached: {error or type(error).__name__}"
            continue
        if status >= web.HTTPInternalServerError.status_code:
            problem = f"{url} cannot tell now who may have the roster (HTTP {status})"
            continue
        return _checked(data, status, url, enrolled)


async def _read(answer: aiohttp.ClientResponse) -> bytes:
    data = bytearray()
    async for part in answer.content.iter_chunked(1 << 16):
        data += part
        if len(data) > _LONGEST_BYTES:
            raise RosterError(f"the coordinator sends a roster of more than {_LONGEST_BYTES} bytes")
    return bytes(data)


def _checked(data: bytes, status: int, url: str, enrolled: Enrolled) -> Roster:
    if status == web.HTTPForbidden.status_code:
        raise RosterError(f"{url} lets this device have no roster: its enrolment token is not valid there")
    if status != web.HTTPOk.status_code:
        raise RosterError(
            f"{url} has no roster (HTTP {status}), and this device was enrolled with one; the service needs "
            "--enrolment with the directory in which the identities were issued"
        )
    roster = Roster(data)
    if roster.hash != enrolled.roster_hash:
        raise RosterError(
            f"the roster of {url} is not the one that this device was enrolled with: its hash is "
            f"{roster.hash.hex()[:16]}…, not {enrolled.roster_hash.hex()[:16]}…; somebody has changed who is "
            "on it, or the enrolment was made anew; do not take part before you know which"
        )
    return roster
