"""Requests that should not be answered: web pages, viewers without a token, the wrong certificate."""

from __future__ import annotations

import asyncio
import contextlib
import os
import ssl
from pathlib import Path

import aiohttp
import pytest
from door_helpers import (
    Service,
    identity_in,
    moving,
    play,
    serving,
    until,
)
from service_helpers import HANG_S

from edge.network.sockets.device_client import Backoff, DeviceClient, JoinError
from edge.wire.session_frames import (
    Welcome,
)


class TestRequests:
    @pytest.mark.parametrize(
        "request_bytes",
        [
            b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
            b"GET / HTTP/9.9\r\n\r\n",
            b"GET /v1/join HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\n\r\n",
            b"GET /v1/join HTTP/1.1\r\nHost: localhost\r\nUpgrade: \xff\r\n\r\n",
            b"GET /%ff%00 HTTP/1.1\r\nHost: localhost\r\n\r\n",
            b"GET http://[::1 HTTP/1.1\r\nHost: [\r\n\r\n",
            b"POST /healthz HTTP/1.1\r\nHost: localhost\r\nContent-Length: 99999999999\r\n\r\n",
            b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nX: " + b"a" * 100_000 + b"\r\n\r\n",
            b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nCookie: \x01\x80;;=;\r\n\r\n",
            os.urandom(4096),
        ],
        ids=[
            "tls",
            "version",
            "no-key",
            "no-text",
            "path",
            "target",
            "length",
            "long-header",
            "cookie",
            "noise",
        ],
    )
    def test_what_is_hardly_http(self, request_bytes: bytes) -> None:
        async def story() -> None:
            async with serving() as service:
                reader, writer = await service.raw()
                writer.write(request_bytes)
                writer.write_eof()
                answering = asyncio.create_task(reader.read())
                await moving(answering.done)
                answer = (
                    b"" if isinstance(answering.exception(), ConnectionResetError) else answering.result()
                )
                assert b"101 Switching" not in answer
                assert b" 500 " not in answer
                writer.close()
                await moving(lambda: service.gate.open == 0)
                assert service.guests.joined == []

        play(story())


class TestWebPages:
    """A page in a browser on this host comes from this host, too."""

    def test_it_cannot_join(self) -> None:
        async def story() -> None:
            async with serving() as service:
                for origin in ("https://evil.example", "null", service.url):
                    with pytest.raises(aiohttp.WSServerHandshakeError) as refused:
                        await service.connect(origin=origin)
                    assert refused.value.status == 403

        play(story())

    @pytest.mark.parametrize(
        "host", ["evil.example", "evil.example:80", "127.0.0.1.evil.example", "[2001:db8::1]"]
    )
    def test_it_cannot_watch_under_a_name_that_points_here(self, host: str) -> None:
        async def story() -> None:
            async with serving() as service:
                async with service.http.get(service.url + "/metrics", headers={"Host": host}) as answer:
                    assert answer.status == 403
                async with service.http.get(service.url + "/metrics") as answer:
                    assert answer.status == 200

        play(story())


class TestViewers:
    TOKEN = "v" * 40

    def test_they_need_their_token(self) -> None:
        async def story() -> None:
            async with serving(view_token=self.TOKEN) as service:
                metrics = service.url + "/metrics"
                for headers in (
                    {},
                    {"Authorization": "Bearer " + "w" * 40},
                    {"Authorization": "Basic " + self.TOKEN},
                    {"Cookie": "recfleet_view=" + "w" * 40},
                ):
                    async with service.http.get(metrics, headers=headers) as answer:
                        assert answer.status == 401
                async with service.http.get(metrics + "?token=wrong") as answer:
                    assert answer.status == 401
                async with service.http.get(service.url + "//metrics") as answer:
                    assert answer.status == 401
                for path in ("/healthz", "/readyz"):
                    async with service.http.get(service.url + path) as answer:
                        assert answer.status == 200
                bearer = {"Authorization": "Bearer " + self.TOKEN}
                async with service.http.get(metrics, headers=bearer) as answer:
                    assert (answer.status, await answer.text()) == (200, "a figure\n")

        play(story())

    def test_a_browser_gets_a_cookie_in_place_of_the_token_in_the_address(self) -> None:
        async def story() -> None:
            async with serving(view_token=self.TOKEN) as service:
                address = f"{service.url}/metrics?token={self.TOKEN}&a=b"
                async with service.http.get(address, allow_redirects=False) as answer:
                    assert answer.status == 303
                    assert answer.headers["Location"] == "/metrics?a=b"
                    cookie = answer.headers["Set-Cookie"]
                    assert "HttpOnly" in cookie
                    assert "SameSite=Lax" in cookie
                shown = {"Cookie": f"recfleet_view={self.TOKEN}"}
                async with service.http.get(service.url + "/metrics", headers=shown) as answer:
                    assert answer.status == 200

        play(story())

    def test_the_answer_never_leads_to_another_host(self) -> None:
        async def story() -> None:
            async with serving(view_token=self.TOKEN) as service:
                reader, writer = await service.raw()
                target = f"GET //evil.example/?token={self.TOKEN} HTTP/1.1\r\nHost: localhost\r\n"
                writer.write(target.encode() + b"Connection: close\r\n\r\n")
                answer = (await reader.read()).decode()
                assert "Location: /evil.example/" in answer or " 30" not in answer.splitlines()[0]
                writer.close()

        play(story())


class TestTls:
    def test_the_pinned_certificate_lets_a_device_join(self, tmp_path: Path) -> None:
        async def story() -> None:
            identity = identity_in(tmp_path)
            async with serving(identity=identity) as service:
                assert service.url.startswith("https://")
                client = device(service, bytes.fromhex(identity.fingerprint))
                task = asyncio.create_task(client)
                await until(lambda: service.guests.joined == [1])
                await service.sessions.close("enough")
                assert await task == "enough"

        play(story())

    @pytest.mark.parametrize("pin", [bytes(32), None], ids=["another", "none"])
    def test_any_other_one_is_not_told_anything(self, tmp_path: Path, pin: bytes | None) -> None:
        async def story() -> None:
            async with serving(identity=identity_in(tmp_path)) as service:
                with pytest.raises(JoinError, match="certificate"):
                    await device(service, pin)
                assert service.guests.joined == service.guests.refused == []

        play(story())

    def test_plain_http_is_not_answered(self, tmp_path: Path) -> None:
        async def story() -> None:
            async with serving(identity=identity_in(tmp_path)) as service:
                reader, writer = await service.raw()
                writer.write(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
                with contextlib.suppress(ConnectionResetError):
                    assert b"HTTP" not in await reader.read()
                writer.close()

        play(story())

    def test_nothing_older_than_tls_1_3_is_spoken(self, tmp_path: Path) -> None:
        async def story() -> None:
            async with serving(identity=identity_in(tmp_path)) as service:
                old = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
                old.check_hostname, old.verify_mode = False, ssl.CERT_NONE
                old.maximum_version = ssl.TLSVersion.TLSv1_2
                with pytest.raises((ssl.SSLError, ConnectionError)):
                    await service.raw(old)

        play(story())


async def device(service: Service, pin: bytes | None) -> str:
    """Join as our own client does."""

    class Nothing:
        def session_lost(self) -> None:
            raise AssertionError("the session goes on")

        def welcomed(self, welcome: Welcome) -> None:
            pass

        def happened(self, event: object) -> None:
            pass

    tls = True if pin is None else aiohttp.Fingerprint(pin)
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(ssl=tls)) as http:
        client = DeviceClient(
            http,
            service.url,
            1,
            token="",
            scenario="",
            listener=Nothing(),
            backoff=Backoff(HANG_S, 0.1, 1.0, 0.1),
            join_s=HANG_S,
            unacknowledged_bytes=1 << 20,
        )
        return await client.run()
