"""What was tried with tokens over real sockets, and that nobody got in."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import aiohttp
import pytest
from door_helpers import (
    DEVICES,
    Records,
    closed,
    frame_from,
    message,
    play,
    serving,
    stay,
    until,
)
from service_helpers import skip

from coordinator.scenario.fleet_section import Sockets
from coordinator.service.admission.enrolment import NOT_VALID, Enrolment, EnrolmentError
from coordinator.service.admission.review import review
from coordinator.service.hooks import AdmissionError
from edge.core.vocabulary import Reason
from edge.wire.session_frames import PROTOCOL, Goodbye, Hello, Ping, Welcome, pack, unpack

NOW_S = 1_000.0


class TestTokens:
    def shown(self, kind: str, records: Records) -> str:
        token = records.issue(3, 3, now_s=NOW_S, lifetime_s=100.0)
        key = token.split(".")[1]
        match kind:
            case "none":
                return ""
            case "of another device":
                return records.issue(4, 9, now_s=NOW_S)
            case "expired":
                return records.issue(3, 3, now_s=NOW_S - 100.0, lifetime_s=100.0)
            case "revoked":
                records.by_key[key] = replace(records.by_key[key], revoked_s=NOW_S)
                return token
            case "unknown":
                return Records().issue(3, 3)
            case "of an unknown id":
                return token.replace(key, "0" * 12)
            case "one letter wrong":
                return token[:-1] + ("A" if token[-1] != "A" else "B")
            case "cut short":
                return token[:-1]
            case "its hash":
                return f"recfleet.{key}.{records.by_key[key].digest.hex()}"
            case "of two lines":
                return token + "\n"
            case "not ASCII":
                return token[:-1] + "é"
        raise AssertionError(kind)

    @pytest.mark.parametrize(
        "kind",
        [
            "none",
            "of another device",
            "expired",
            "revoked",
            "unknown",
            "of an unknown id",
            "one letter wrong",
            "cut short",
            "its hash",
            "of two lines",
            "not ASCII",
        ],
    )
    def test_one_that_is_not_good_enough_is_refused_without_saying_why(self, kind: str) -> None:
        async def story() -> None:
            records = Records()
            async with serving(enrolments=records, now_s=lambda: NOW_S) as service:
                _, answer = await service.hello(3, self.shown(kind, records))
                assert answer == Goodbye(NOT_VALID)
                assert service.guests.refused == [(3, NOT_VALID)]
                assert service.guests.joined == []

        play(story())

    def test_the_right_one_lets_in(self) -> None:
        async def story() -> None:
            records = Records()
            token = records.issue(3, 5, now_s=NOW_S)
            async with serving(enrolments=records, now_s=lambda: NOW_S) as service:
                for device in (3, 4, 5):
                    _, answer = await service.hello(device, token)
                    assert isinstance(answer, Welcome)
                assert service.guests.joined == [3, 4, 5]

        play(story())

    def test_a_stranger_does_not_learn_how_many_devices_there_are(self) -> None:
        async def story() -> None:
            async with serving(enrolments=Records()) as service:
                _, answer = await service.hello(DEVICES + 5)
                assert answer == Goodbye(NOT_VALID)

        play(story())

    def test_who_came_in_leaves_when_the_token_is_no_longer_valid(self) -> None:
        async def story() -> None:
            records = Records()
            short, long = records.issue(1, 1, lifetime_s=10.0), records.issue(2, 2, lifetime_s=1000.0)
            time_s = [0.0]
            async with serving(enrolments=records, now_s=lambda: time_s[0]) as service:
                first, _ = await service.join(1, short)
                second, _ = await service.join(2, long)
                await review(service.sessions)
                assert len(service.sessions) == 2
                time_s[0] = 10.0
                await review(service.sessions)
                assert await frame_from(first) == Goodbye(NOT_VALID)
                assert service.guests.left == [(1, Reason.SESSION_ENDED, NOT_VALID)]
                assert service.sessions.of(2) is not None
                await second.close()

        play(story())

    def test_an_expired_token_does_not_go_on_with_a_session(self) -> None:
        async def story() -> None:
            records = Records()
            token = records.issue(1, 1, lifetime_s=10.0)
            time_s = [0.0]
            async with serving(enrolments=records, now_s=lambda: time_s[0]) as service:
                socket, welcome = await service.join(1, token)
                await socket.close()
                time_s[0] = 10.0
                _, answer = await service.hello(1, token, welcome.session)
                assert answer == Goodbye(NOT_VALID)
                assert service.guests.resumed == []

        play(story())

    def test_records_that_cannot_be_read_let_nobody_in_and_send_nobody_away(self) -> None:
        class Broken(Records):
            broken = False

            def find(self, key: str) -> Enrolment | None:
                if self.broken:
                    raise EnrolmentError("disk I/O error")
                return super().find(key)

        async def story() -> None:
            records = Broken()
            token = records.issue(1, 2)
            async with serving(enrolments=records, now_s=lambda: 0.0, expected_complaints=2) as service:
                first, welcome = await service.join(1, token)
                records.broken = True
                for device, session in ((2, ""), (1, welcome.session)):
                    socket = await service.connect()
                    await socket.send_bytes(pack(Hello(PROTOCOL, device, token, session, "", 0)))
                    # Neither refused for good, nor is the session over.
                    why = "who may come in cannot be told now"
                    assert await closed(socket) == (aiohttp.WSCloseCode.TRY_AGAIN_LATER, why)
                with pytest.raises(AdmissionError):
                    await review(service.sessions)
                assert service.sessions.of(1) is not None
                assert service.sessions.of(2) is None
                records.broken = False
                await first.close()
                _, again = await service.hello(1, token, welcome.session)
                assert isinstance(again, Welcome)
                assert again.session == welcome.session

        play(story())


async def asked(socket: aiohttp.ClientWebSocketResponse) -> None:
    """Wait until the coordinator asks for a sign of life, and give none."""
    message = await socket.receive()
    assert isinstance(unpack(message.data), Ping)


class TestStolenSessions:
    """The session token alone opens nothing; with the enrolment token, only what its owner has left."""

    def test_a_session_without_the_right_to_be_here_is_refused(self) -> None:
        async def story() -> None:
            records = Records()
            token, other = records.issue(1, 1), records.issue(2, 2)
            async with serving(enrolments=records, now_s=lambda: 0.0) as service:
                owner, welcome = await service.join(1, token)
                for device, shown in ((1, ""), (1, other), (2, other)):
                    _, answer = await service.hello(device, shown, welcome.session)
                    assert isinstance(answer, Goodbye)
                await owner.send_bytes(message(1))
                await until(lambda: service.inbox.messages == [(1, b"hello")])
                assert service.guests.resumed == []

        play(story())

    def test_it_is_refused_while_its_owner_is_there_even_with_the_enrolment_token(self) -> None:
        async def story() -> None:
            records = Records()
            token = records.issue(0, 9)
            async with serving(enrolments=records, now_s=lambda: 0.0) as service:
                owner, welcome = await service.join(1, token)
                alive = asyncio.create_task(stay(owner))
                thieves = await asyncio.gather(*(service.hello(1, token, welcome.session) for _ in range(20)))
                why = "device 1 is here, and goes on with its session"
                assert [answer for _, answer in thieves] == [Goodbye(why)] * 20
                await owner.send_bytes(message(1))
                await until(lambda: service.inbox.messages == [(1, b"hello")])
                assert (service.guests.resumed, service.guests.left) == ([], [])
                assert not alive.done()
                alive.cancel()

        play(story())

    @pytest.mark.slow
    def test_an_owner_who_is_busy_sending_is_there(self) -> None:
        """Its answer is stuck behind a long message, which takes longer than silence may last."""

        async def story() -> None:
            async with serving(sockets=Sockets.model_validate({"join_timeout": "4 s"})) as service:
                owner, welcome = await service.join(1)

                async def send_slowly() -> None:
                    for sequence in range(1, 61):
                        await owner.send_bytes(message(sequence, b"x"))
                        await asyncio.sleep(0.1)

                busy = asyncio.create_task(send_slowly())
                _, answer = await service.hello(1, session=welcome.session)
                assert answer == Goodbye("device 1 is here, and goes on with its session")
                busy.cancel()

        play(story())

    def test_an_owner_whose_connection_is_half_open_comes_back(self) -> None:
        async def story() -> None:
            async with serving() as service:
                gone, welcome = await service.join(1)  # and never answers again
                coming = asyncio.create_task(service.hello(1, session=welcome.session))
                await asked(gone)
                skip(3.0)
                _, again = await coming
                assert isinstance(again, Welcome)
                assert again.session == welcome.session
                assert service.guests.resumed == [1]

        play(story())

    def test_of_two_who_come_back_at_once_one_does(self) -> None:
        async def story() -> None:
            async with serving() as service:
                gone, welcome = await service.join(1)

                async def back() -> str:
                    socket, answer = await service.hello(1, session=welcome.session)
                    return answer.reason if isinstance(answer, Goodbye) else await stay(socket)

                comers = [asyncio.create_task(back()) for _ in range(2)]
                await asked(gone)
                skip(3.0)
                done, _ = await asyncio.wait(comers, return_when=asyncio.FIRST_COMPLETED)
                assert [one.result() for one in done] == ["device 1 is here, and goes on with its session"]
                assert service.guests.resumed == [1]
                assert service.sessions.of(1) is not None

        play(story())

    @pytest.mark.parametrize("guess", ["x", "é", "0" * 32])
    def test_a_session_token_cannot_be_guessed(self, guess: str) -> None:
        async def story() -> None:
            async with serving() as service:
                owner, _ = await service.join(1)
                _, answer = await service.hello(1, session=guess)
                assert answer == Goodbye("the session is over")
                await owner.send_bytes(message(1))
                await until(lambda: service.inbox.messages == [(1, b"hello")])

        play(story())


class TestTwoDevicesWithOneIdentity:
    def test_the_second_one_is_refused(self) -> None:
        async def story() -> None:
            async with serving() as service:
                first, _ = await service.join(1)
                alive = asyncio.create_task(stay(first))
                _, answer = await service.hello(1)
                assert answer == Goodbye("device 1 has joined already")
                assert service.guests.joined == [1]
                alive.cancel()

        play(story())

    def test_of_many_at_once_one_comes_in(self) -> None:
        async def story() -> None:
            async with serving() as service:

                async def comes() -> str:
                    socket, answer = await service.hello(1)
                    return answer.reason if isinstance(answer, Goodbye) else await stay(socket)

                comers = [asyncio.create_task(comes()) for _ in range(30)]
                await until(lambda: sum(one.done() for one in comers) == 29)
                assert {one.result() for one in comers if one.done()} == {"device 1 has joined already"}
                assert service.guests.joined == [1]

        play(story())

    def test_one_that_was_restarted_begins_anew_and_its_old_session_is_worth_nothing(self) -> None:
        async def story() -> None:
            async with serving() as service:
                socket, first = await service.join(1)
                await socket.close()
                _, second = await service.join(1)
                assert second.session != first.session
                _, answer = await service.hello(1, session=first.session)
                assert answer == Goodbye("the session is over")

        play(story())
