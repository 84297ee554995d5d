"""What the options of ``serve`` and ``device`` about who may come in ask for."""

from __future__ import annotations

import datetime
import stat
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import click

from coordinator.service.admission.certificates import (
    CertificateError,
    ServiceIdentity,
    generated_identity,
    own_identity,
)
from coordinator.service.admission.enrolment_store import EnrolmentStore, shut
from coordinator.service.admission.gate import Gate, is_loopback, require_safe
from coordinator.service.admission.limits import ArrivalLimits
from coordinator.service.admission.token_files import TokenFileError, Tokens, read_tokens
from coordinator.service.admission.viewing import checked_view_token, new_view_token
from edge.secagg.roster import Roster

_OTHERS: int = stat.S_IRGRP | stat.S_IROTH


@dataclass(frozen=True, slots=True)
class Opened:
    """A gate, and what people must be told about it."""

    gate: Gate
    identity: ServiceIdentity | None
    view_token: str | None
    tokens_needed: bool
    roster: Roster | None = None
    """Of devices that were issued identities."""

    def announcement(self, url: str) -> list[str]:
        """Return what to print when the service listens at ``url``."""
        options = ""
        if self.tokens_needed:
            options += " --token-file FILE"
        lines = []
        if self.identity is not None:
            pin = f"sha256:{self.identity.fingerprint}"
            lines.append(f"certificate: {pin}")
            if self.identity.generated:
                options += f" --pin {pin}"
        elif not is_loopback(_host_in(url)):
            options += " --insecure"
        lines.insert(0, f"listening at {url}; devices join with: recfleet device {url}{options}")
        if self.view_token is not None:
            lines.append(f"viewers' token, for the dashboard and the metrics: {self.view_token}")
        return lines


def _host_in(url: str) -> str:
    return url.partition("://")[2].rpartition(":")[0].strip("[]")


@contextmanager
def open_gate(
    host: str,
    *,
    enrolment: Path | None,
    tls: bool,
    certificate: Path | None,
    key: Path | None,
    insecure: bool,
    view_token_file: Path | None,
    connections: int,
    connections_per_address: int,
    arrivals_per_s: float,
    arrivals_per_s_per_address: float,
) -> Iterator[Opened]:
    """Give the gate that the options ask for.

    Raises
    ------
    ExposureError : it would be open to more people than it should be.
    CertificateError, EnrolmentError, TokenFileError, ViewTokenError : what they name cannot be used.
    """
    _check_certificate_options(enrolment, certificate, key, tls=tls)
    require_safe(
        host,
        encrypted=tls or certificate is not None,
        insecure=insecure,
        enrolled=enrolment is not None,
    )
    local = is_loopback(host)
    with ExitStack() as stack:
        store = None
        if enrolment is not None:
            store = stack.enter_context(EnrolmentStore(enrolment, create=False))
            for line in shut(enrolment):
                click.echo(line, err=True)
        identity = None
        if certificate is not None and key is not None:
            identity = own_identity(certificate, key)
            if key.stat().st_mode & _OTHERS:
                click.echo(
                    f"{key} can be read by others on this host; 'chmod 600 {key}' changes that", err=True
                )
        elif tls and enrolment is not None:
            identity = generated_identity(enrolment, host, datetime.datetime.now(datetime.UTC))
        view_token = None if local else new_view_token()
        if view_token_file is not None:
            view_token = checked_view_token(_secret_in(view_token_file))
        gate = Gate(
            limits=ArrivalLimits(
                connections, connections_per_address, arrivals_per_s, arrivals_per_s_per_address
            ),
            enrolments=store,
            identity=identity,
            view_token=view_token,
            local=local,
        )
        # One that was given is known, and need not be in a terminal's history or a log.
        shown = None if view_token_file is not None else view_token
        yield Opened(gate, identity, shown, enrolment is not None, None if store is None else store.roster())


def _check_certificate_options(
    enrolment: Path | None, certificate: Path | None, key: Path | None, *, tls: bool
) -> None:
    if (certificate is None) != (key is None):
        missing = "--key" if key is None else "--certificate"
        raise CertificateError(f"a certificate and its key belong together; add {missing} FILE")
    if tls and certificate is not None:
        raise CertificateError("--tls generates a certificate, and --certificate names one; leave one out")
    if tls and enrolment is None:
        raise CertificateError("--tls keeps its certificate with the tokens; add --enrolment DIR")


def _secret_in(file: Path) -> str:
    """Return the only line of a file that only its owner may read."""
    if file.stat().st_mode & _OTHERS:
        raise TokenFileError(_open_to_others(file))
    return file.read_text(encoding="utf-8").strip()


def _open_to_others(file: Path) -> str:
    return f"{file} can be read by others on this host; 'chmod 600 {file}' changes that"


def tokens_of(token: str, token_file: Path | None) -> Tokens:
    """Return what gives a device its token, and its identity if it has one.

    Raises
    ------
    TokenFileError : the file holds none, or there are two ways to one.
    """
    if token_file is None:
        return Tokens(lambda _device: token, None)
    if token:
        raise TokenFileError("--token-file and --token (or RECFLEET_TOKEN) both give a token; leave one out")
    return read_tokens(token_file.read_text(encoding="utf-8"), str(token_file))
