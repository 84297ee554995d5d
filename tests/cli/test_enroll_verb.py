"""``enroll``, and what ``serve`` and ``device`` refuse before anything listens or connects."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from coordinator.cli.entry import execute

TOKEN = re.compile(r"recfleet\.([0-9a-f]{12})\.[A-Za-z0-9_-]{43}")


def issued(capsys: pytest.CaptureFixture[str], *options: str) -> list[str]:
    assert execute(["enroll", "issue", "tokens", *options]) == 0
    return capsys.readouterr().out.splitlines()


class TestEnroll:
    def test_one_token_for_a_range_is_all_that_is_printed(
        self, in_folder: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        (line,) = issued(capsys, "--devices", "0-499", "--expires", "12 h")
        assert TOKEN.fullmatch(line)

    def test_each_device_gets_one_of_its_own(
        self, in_folder: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        lines = issued(capsys, "--devices", "7-9", "--each")
        assert [line.split()[0] for line in lines] == ["7", "8", "9"]
        assert len({line.split()[1] for line in lines}) == 3
        assert all(TOKEN.fullmatch(line.split()[1]) for line in lines)

    def test_the_list_tells_states_and_no_secret(
        self, in_folder: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        tokens = issued(capsys, "--devices", "1") + issued(capsys, "--devices", "2-3", "--expires", "1 ms")
        keys = [token.split(".")[1] for token in tokens]
        assert execute(["enroll", "revoke", "tokens", keys[0]]) == 0
        assert capsys.readouterr().out == f"revoked {keys[0]}\n"
        assert execute(["enroll", "list", "tokens"]) == 0
        shown = capsys.readouterr().out
        states = {key: next(line for line in shown.splitlines() if key in line) for key in keys}
        assert "revoked" in states[keys[0]]
        assert "expired" in states[keys[1]]
        assert "2-3" in states[keys[1]]
        assert not any(token.split(".")[2] in shown for token in tokens)

    @pytest.mark.parametrize(
        ("options", "why"),
        [
            (["--devices", "x"], "'x' names no devices; write 17, or 0-499"),
            (["--devices", "9-3"], "'9-3' ends before it begins; write 3-9"),
            (["--devices", "1", "--expires", "7"], "'7' has no unit"),
            (["--devices", "1", "--expires", "0 s"], "write a time above 0"),
            (["--devices", "0-1000000", "--each"], "at most 1000000 tokens at once"),
        ],
    )
    def test_what_makes_no_sense_is_refused(
        self, in_folder: Path, capsys: pytest.CaptureFixture[str], options: list[str], why: str
    ) -> None:
        assert execute(["enroll", "issue", "tokens", *options]) == 2
        assert why in " ".join(capsys.readouterr().err.split())
        assert not Path("tokens").exists()

    def test_a_directory_without_tokens_is_said(
        self, in_folder: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        for verb in (["list", "tokens"], ["revoke", "tokens", "0" * 12]):
            assert execute(["enroll", *verb]) == 2
            assert "no tokens were issued here" in capsys.readouterr().err

    def test_a_token_that_is_not_there_cannot_be_revoked(
        self, in_folder: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        issued(capsys, "--devices", "1")
        assert execute(["enroll", "revoke", "tokens", "nothing"]) == 2
        assert "there is no token nothing" in capsys.readouterr().err


class TestServe:
    @pytest.mark.parametrize(
        ("options", "why"),
        [
            (["--host", "0.0.0.0"], "add --enrolment DIR"),
            (["--host", "0.0.0.0", "--insecure"], "add --enrolment DIR"),
            (["--host", "::", "--enrolment", "tokens"], "add --tls"),
            (["--tls"], "add --enrolment DIR"),
            (["--tls", "--insecure", "--enrolment", "tokens"], "leave one of them out"),
            (["--key", "key"], "add --certificate FILE"),
            (["--certificate", "key"], "add --key FILE"),
            (["--certificate", "key", "--key", "key"], "holds no certificate in PEM"),
            (["--tls", "--certificate", "key", "--key", "key", "--enrolment", "tokens"], "leave one out"),
            (["--enrolment", "nothing"], "no tokens were issued here"),
            (["--view-token-file", "open"], "can be read by others on this host"),
            (["--view-token-file", "key"], "openssl rand -hex 32"),
            (["--connections", "0"], "--connections"),
            (["--arrivals-per-s", "0"], "--arrivals-per-s"),
        ],
    )
    def test_what_would_be_open_to_too_many_is_refused(
        self,
        in_folder: Path,
        scenario: Path,
        capsys: pytest.CaptureFixture[str],
        options: list[str],
        why: str,
    ) -> None:
        issued(capsys, "--devices", "1")
        for name, mode in (("key", 0o600), ("open", 0o644)):
            Path(name).write_text("short")
            Path(name).chmod(mode)
        assert execute(["serve", str(scenario), "--port", "0", *options]) == 2
        assert why in " ".join(capsys.readouterr().err.split())
        assert not Path("runs").exists()


class TestDevice:
    @pytest.mark.parametrize(
        ("arguments", "why"),
        [
            (["http://192.0.2.1:8080"], "write https://192.0.2.1:8080, or add --insecure"),
            (["http://127.0.0.1:1", "--pin", "ab" * 32], "there is no certificate to pin"),
            (["https://127.0.0.1:1", "--pin", "ab"], "is no fingerprint"),
            (["http://127.0.0.1:1", "--token-file", "file"], "write a token, or lines 'DEVICE TOKEN'"),
            (["http://127.0.0.1:1", "--token-file", "file", "--token", "x"], "leave one out"),
        ],
    )
    def test_what_would_tell_the_token_to_others_is_refused(
        self, in_folder: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], why: str
    ) -> None:
        Path("file").write_text("\n")
        assert execute(["device", *arguments]) == 2
        assert why in capsys.readouterr().err
