"""Enrolment tokens and their records, certificates, pins, and rules on who may be open to whom."""

from __future__ import annotations

import datetime
import hashlib
import multiprocessing
import sqlite3
from dataclasses import replace
from pathlib import Path

import pytest
from cryptography import x509

from coordinator.service.admission.certificates import CertificateError, generated_identity, own_identity
from coordinator.service.admission.enrolment import NOT_VALID, EnrolmentError, issue, judge, key_of
from coordinator.service.admission.enrolment_store import EnrolmentStore, shut
from coordinator.service.admission.gate import ExposureError, is_loopback, require_safe
from coordinator.service.admission.pinning import PinError, parse_pin, require_private
from coordinator.service.admission.token_files import TokenFileError, read_tokens, write_line
from coordinator.service.admission.viewing import (
    Viewing,
    ViewTokenError,
    checked_view_token,
    is_for_viewers,
    judge_viewer,
    new_view_token,
)

NOW = datetime.datetime(2026, 1, 2, tzinfo=datetime.UTC)


class TestTokens:
    def test_a_record_holds_the_hash_of_the_secret_and_not_the_secret(self) -> None:
        token, record = issue(3, 5, 100.0, 50.0)
        secret = token.split(".")[2]
        assert record.digest == hashlib.sha256(secret.encode()).digest()
        assert secret not in repr(record)
        assert record.digest.hex() not in repr(record)
        assert (record.first, record.last, record.issued_s, record.expires_s) == (3, 5, 100.0, 150.0)
        assert key_of(token) == record.key

    def test_no_two_are_alike(self) -> None:
        tokens = {issue(0, 0, 0.0, 1.0)[0] for _ in range(1000)}
        assert len({token.split(".")[1] for token in tokens}) == len(tokens) == 1000

    def test_it_is_good_for_its_devices_until_it_expires(self) -> None:
        token, record = issue(3, 5, 100.0, 50.0)
        verdicts = {device: judge(token, record, device, 149.9) for device in (2, 3, 5, 6)}
        assert verdicts == {2: NOT_VALID, 3: None, 5: None, 6: NOT_VALID}
        assert judge(token, record, 3, 150.0) == NOT_VALID

    def test_it_is_good_for_nothing_once_revoked(self) -> None:
        token, record = issue(3, 5, 100.0, 50.0)
        assert judge(token, replace(record, revoked_s=99.0), 3, 100.0) == NOT_VALID

    def test_the_secret_of_one_does_not_open_another(self) -> None:
        first, record = issue(0, 9, 0.0, 10.0)
        second, other = issue(0, 9, 0.0, 10.0)
        mixed = f"recfleet.{record.key}.{second.split('.')[2]}"
        assert judge(mixed, record, 1, 1.0) == NOT_VALID
        assert judge(first, other, 1, 1.0) == NOT_VALID
        assert judge(first, None, 1, 1.0) == NOT_VALID
        assert judge("", replace(record, digest=hashlib.sha256(b"").digest()), 1, 1.0) == NOT_VALID

    @pytest.mark.parametrize("span", [(-1, 3), (4, 3)])
    def test_devices_that_cannot_be_are_refused(self, span: tuple[int, int]) -> None:
        with pytest.raises(EnrolmentError, match="FIRST-LAST"):
            issue(*span, 0.0, 1.0)

    @pytest.mark.parametrize("lifetime_s", [0.0, -1.0, float("nan"), float("inf")])
    def test_one_that_would_have_expired_is_refused(self, lifetime_s: float) -> None:
        with pytest.raises(EnrolmentError, match="expired"):
            issue(0, 0, 0.0, lifetime_s)


def _issue_elsewhere(folder: Path, number: int) -> None:
    with EnrolmentStore(folder, create=True) as store:
        for device in range(number):
            store.add([issue(device, device, float(device), 10.0)[1]])


class TestStore:
    def test_gives_back_what_it_was_given(self, tmp_path: Path) -> None:
        _, record = issue(3, 5, 100.0, 50.0)
        with EnrolmentStore(tmp_path / "new", create=True) as store:
            store.add([record])
        with EnrolmentStore(tmp_path / "new", create=False) as store:
            assert store.find(record.key) == record
            assert store.find("0" * 12) is None
            assert store.all() == [record]

    def test_nobody_else_can_read_it_and_no_token_is_in_it(self, tmp_path: Path) -> None:
        token, record = issue(3, 5, 100.0, 50.0)
        with EnrolmentStore(tmp_path / "new", create=True) as store:
            store.add([record])
            files = list((tmp_path / "new").iterdir())
            assert {file.stat().st_mode & 0o077 for file in files} == {0}
            assert all(token.split(".")[2].encode() not in file.read_bytes() for file in files)
        assert (tmp_path / "new").stat().st_mode & 0o077 == 0

    def test_what_was_open_to_others_is_shut_and_said(self, tmp_path: Path) -> None:
        with EnrolmentStore(tmp_path, create=True):
            pass
        key, other = tmp_path / "key.pem", tmp_path / "readme.txt"
        for file in (key, other):
            file.touch()
            file.chmod(0o644)
        tmp_path.chmod(0o755)
        lines = list(shut(tmp_path))
        assert [line.partition(":")[0] for line in lines] == [str(key), str(tmp_path)]
        assert f"'chmod 700 {tmp_path}'" in lines[1]
        assert (key.stat().st_mode & 0o777, other.stat().st_mode & 0o777) == (0o600, 0o644)
        tmp_path.chmod(0o700)
        assert list(shut(tmp_path)) == []

    def test_one_that_is_open_sees_what_another_issues_and_revokes(self, tmp_path: Path) -> None:
        token, record = issue(3, 5, 100.0, 50.0)
        with EnrolmentStore(tmp_path, create=True) as service, EnrolmentStore(tmp_path, create=False) as verb:
            verb.add([record])
            assert judge(token, service.find(record.key), 3, 101.0) is None
            verb.revoke([record.key], 102.0)
            assert judge(token, service.find(record.key), 3, 103.0) == NOT_VALID
            verb.revoke([record.key], 104.0)
            found = service.find(record.key)
            assert found is not None
            assert found.revoked_s == 102.0

    @pytest.mark.slow
    def test_two_processes_can_issue_at_once(self, tmp_path: Path) -> None:
        context = multiprocessing.get_context("spawn")
        others = [context.Process(target=_issue_elsewhere, args=(tmp_path, 20)) for _ in range(2)]
        for other in others:
            other.start()
        for other in others:
            other.join(60.0)
        assert [other.exitcode for other in others] == [0, 0]
        with EnrolmentStore(tmp_path, create=False) as store:
            assert len(store.all()) == 40

    def test_revoking_one_that_is_not_there_revokes_none(self, tmp_path: Path) -> None:
        _, record = issue(3, 5, 100.0, 50.0)
        with EnrolmentStore(tmp_path, create=True) as store:
            store.add([record])
            with pytest.raises(EnrolmentError, match="there is no token 000000000000"):
                store.revoke([record.key, "0" * 12], 101.0)
            assert store.all() == [record]

    def test_issuing_the_same_record_twice_keeps_neither_new_one(self, tmp_path: Path) -> None:
        _, first = issue(1, 1, 0.0, 1.0)
        _, second = issue(2, 2, 0.0, 1.0)
        with EnrolmentStore(tmp_path, create=True) as store:
            store.add([first])
            with pytest.raises(EnrolmentError, match="UNIQUE"):
                store.add([second, first])
            assert store.all() == [first]

    def test_a_directory_without_tokens_is_said(self, tmp_path: Path) -> None:
        with pytest.raises(EnrolmentError, match="no tokens were issued here; 'recfleet enroll issue"):
            EnrolmentStore(tmp_path, create=False)

    def test_a_file_of_another_kind_is_said(self, tmp_path: Path) -> None:
        (tmp_path / "enrolment.sqlite3").write_text("not a database " * 100)
        with pytest.raises(EnrolmentError, match="not a database"):
            EnrolmentStore(tmp_path, create=False)

    def test_a_table_that_was_taken_away_is_an_error_not_a_yes(self, tmp_path: Path) -> None:
        with EnrolmentStore(tmp_path, create=True) as store:
            with sqlite3.connect(tmp_path / "enrolment.sqlite3") as other:
                other.execute("DROP TABLE enrolment")
            other.close()
            with pytest.raises(EnrolmentError, match="no such table"):
                store.find("0" * 12)


class TestCertificates:
    def test_a_generated_one_stays_the_same(self, tmp_path: Path) -> None:
        first = generated_identity(tmp_path / "new", "192.0.2.1", NOW)
        second = generated_identity(tmp_path / "new", "192.0.2.1", NOW + datetime.timedelta(days=100))
        assert first.fingerprint == second.fingerprint
        der = x509.load_pem_x509_certificate((tmp_path / "new" / "certificate.pem").read_bytes())
        names = der.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        assert [str(one) for one in names.get_values_for_type(x509.IPAddress)] == ["192.0.2.1"]
        assert (tmp_path / "new" / "key.pem").stat().st_mode & 0o077 == 0

    def test_its_fingerprint_is_that_of_its_der(self, tmp_path: Path) -> None:
        identity = generated_identity(tmp_path, "localhost", NOW)
        pem = (tmp_path / "certificate.pem").read_bytes()
        import ssl  # noqa: PLC0415

        assert hashlib.sha256(ssl.PEM_cert_to_DER_cert(pem.decode())).hexdigest() == identity.fingerprint

    def test_own_ones_are_used(self, tmp_path: Path) -> None:
        generated = generated_identity(tmp_path, "localhost", NOW)
        own = own_identity(tmp_path / "certificate.pem", tmp_path / "key.pem")
        assert (own.fingerprint, own.generated) == (generated.fingerprint, False)

    def test_a_key_that_does_not_belong_to_it_is_said(self, tmp_path: Path) -> None:
        generated_identity(tmp_path / "a", "localhost", NOW)
        generated_identity(tmp_path / "b", "localhost", NOW)
        with pytest.raises(CertificateError, match="cannot be used together: key values mismatch"):
            own_identity(tmp_path / "a" / "certificate.pem", tmp_path / "b" / "key.pem")

    def test_half_a_pair_is_said(self, tmp_path: Path) -> None:
        generated_identity(tmp_path, "localhost", NOW)
        (tmp_path / "key.pem").unlink()
        with pytest.raises(CertificateError, match=r"key\.pem is missing"):
            generated_identity(tmp_path, "localhost", NOW)

    def test_a_file_that_holds_none_is_said(self, tmp_path: Path) -> None:
        generated_identity(tmp_path, "localhost", NOW)
        (tmp_path / "certificate.pem").write_text("nothing")
        with pytest.raises(CertificateError, match="holds no certificate in PEM"):
            own_identity(tmp_path / "certificate.pem", tmp_path / "key.pem")
        with pytest.raises(CertificateError, match="No such file"):
            own_identity(tmp_path / "missing.pem", tmp_path / "key.pem")


class TestPins:
    DIGITS = "ab" * 32

    @pytest.mark.parametrize(
        "text",
        [
            "sha256:" + "ab" * 32,
            "ab" * 32,
            "SHA256:" + "AB" * 32,
            ":".join(["AB"] * 32),
            " sha256:" + "ab" * 32,
        ],
    )
    def test_are_read_however_they_are_written(self, text: str) -> None:
        assert parse_pin(text) == bytes.fromhex(self.DIGITS)

    @pytest.mark.parametrize("text", ["", "sha256:", "sha1:" + "ab" * 20, "ab" * 31, "zz" * 32])
    def test_that_are_none_are_refused(self, text: str) -> None:
        with pytest.raises(PinError, match="is no fingerprint"):
            parse_pin(text)


class TestExposure:
    @pytest.mark.parametrize("host", ["127.0.0.1", "127.8.9.1", "::1", "localhost"])
    def test_on_this_host_alone_nothing_is_asked_for(self, host: str) -> None:
        require_safe(host, encrypted=False, insecure=False, enrolled=False)

    @pytest.mark.parametrize(
        "host", ["0.0.0.0", "::", "", "192.0.2.1", "coordinator.example", "127.0.0.1.example"]
    )
    def test_for_other_hosts_there_must_be_tokens_and_tls(self, host: str) -> None:
        with pytest.raises(ExposureError, match="add --enrolment DIR"):
            require_safe(host, encrypted=True, insecure=False, enrolled=False)
        with pytest.raises(ExposureError, match="add --enrolment DIR"):
            require_safe(host, encrypted=False, insecure=True, enrolled=False)
        with pytest.raises(ExposureError, match="add --tls"):
            require_safe(host, encrypted=False, insecure=False, enrolled=True)
        require_safe(host, encrypted=True, insecure=False, enrolled=True)
        require_safe(host, encrypted=False, insecure=True, enrolled=True)

    def test_insecure_and_tls_contradict_each_other(self) -> None:
        with pytest.raises(ExposureError, match="leave one of them out"):
            require_safe("0.0.0.0", encrypted=True, insecure=True, enrolled=True)

    def test_an_address_of_this_host_is_known_from_its_look(self) -> None:
        assert [is_loopback(one) for one in ("127.0.0.1", "::1", "localhost")] == [True] * 3
        assert not any(is_loopback(one) for one in ("", "0.0.0.0", "10.0.0.1", "LOCALHOST.example", "evil"))

    def test_a_device_shows_its_token_over_plain_http_on_this_host_alone(self) -> None:
        require_private("http://127.0.0.1:8080", pinned=False, insecure=False)
        require_private("http://[::1]:8080/", pinned=False, insecure=False)
        require_private("https://192.0.2.1", pinned=True, insecure=False)
        require_private("http://192.0.2.1", pinned=False, insecure=True)
        with pytest.raises(ExposureError, match=r"write https://192\.0\.2\.1:80, or add --insecure"):
            require_private("http://192.0.2.1:80/", pinned=False, insecure=False)
        with pytest.raises(ExposureError, match="no certificate to pin"):
            require_private("http://127.0.0.1:80", pinned=True, insecure=False)


class TestTokenFiles:
    def test_one_token_is_for_all(self) -> None:
        token, _ = issue(0, 9, 0.0, 1.0)
        token_of, enrolled = read_tokens(write_line(None, token) + "\n", "file")
        assert enrolled is None
        assert {token_of(device) for device in (0, 9)} == {token}

    def test_lines_are_for_one_device_each(self) -> None:
        tokens = [issue(device, device, 0.0, 1.0)[0] for device in range(3)]
        text = "\n".join(write_line(device, token) for device, token in enumerate(tokens))
        token_of, _ = read_tokens(text, "file")
        assert [token_of(device) for device in range(3)] == tokens
        with pytest.raises(TokenFileError, match="file has no token for device 3"):
            token_of(3)

    def test_what_is_wrong_is_said_without_showing_a_token(self) -> None:
        token, _ = issue(0, 0, 0.0, 1.0)
        for text, why in (
            ("\n", "file is empty"),
            (f"0 {token}\nx {token}", "file:2: write"),
            (f"0 {token[:-1]}", "file:1: write"),
            (f"0 {token}\n\n0 {token}", "file:3: device 0 has a token already"),
        ):
            with pytest.raises(TokenFileError, match=why) as refused:
                read_tokens(text, "file")
            assert token[20:-1] not in str(refused.value)


class TestViewers:
    TOKEN = "t" * 32

    def test_all_is_for_viewers_but_health_and_devices(self) -> None:
        for path in (
            "/",
            "/metrics",
            "/dashboard",
            "/events",
            "/healthz/",
            "/v1/",
            "/v1/../metrics",
            "//v1/join",
            "/anything",
        ):
            assert is_for_viewers(path)
        for path in ("/healthz", "/readyz", "/v1/join"):
            assert not is_for_viewers(path)

    def test_the_token_comes_in_a_header_a_cookie_or_the_address(self) -> None:
        assert judge_viewer(None, {}, {}, {}) is Viewing.ALLOWED
        assert judge_viewer(self.TOKEN, {}, {}, {}) is Viewing.REFUSED
        header = {"Authorization": f"bearer  {self.TOKEN}"}
        assert judge_viewer(self.TOKEN, header, {}, {}) is Viewing.ALLOWED
        assert judge_viewer(self.TOKEN, {}, {"recfleet_view": self.TOKEN}, {}) is Viewing.ALLOWED
        assert judge_viewer(self.TOKEN, {}, {}, {"token": self.TOKEN}) is Viewing.TO_COOKIE
        assert judge_viewer(self.TOKEN, {"Authorization": "Bearer"}, {}, {"token": ""}) is Viewing.REFUSED
        assert judge_viewer(self.TOKEN, {"Authorization": "Bearer \udc80"}, {}, {}) is Viewing.REFUSED

    def test_one_that_can_be_guessed_is_refused(self) -> None:
        assert checked_view_token(self.TOKEN) == self.TOKEN
        assert checked_view_token(new_view_token())
        for poor in ("", "t" * 31, "t" * 31 + " ", "t" * 31 + "é", "t" * 31 + ";"):
            with pytest.raises(ViewTokenError, match="openssl rand -hex 32"):
                checked_view_token(poor)
