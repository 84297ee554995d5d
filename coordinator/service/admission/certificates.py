"""TLS of the service: a certificate of one's own, or one that is generated and known by its fingerprint."""

from __future__ import annotations

import datetime
import ipaddress
import os
import ssl
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from coordinator.service.admission.enrolment_store import private_directory
from edge.core.errors import RecfleetError

_CERTIFICATE: Final = "certificate.pem"
_KEY: Final = "key.pem"
_LIFETIME: Final = datetime.timedelta(days=3650)
"""Devices trust the fingerprint, not the date; a new certificate would lock all of them out."""


class CertificateError(RecfleetError):
    """A certificate that cannot be used; the message says why."""


@dataclass(frozen=True, slots=True)
class ServiceIdentity:
    """What the service shows of itself.

    Attributes
    ----------
    context : for the sockets; TLS 1.3 alone.
    fingerprint : SHA-256 of the certificate in DER, as 64 hexadecimal digits.
    generated : whether nobody but us has signed it, so that devices must pin it.
    """

    context: ssl.SSLContext
    fingerprint: str
    generated: bool


def own_identity(certificate: Path, key: Path) -> ServiceIdentity:
    """Return the identity of a certificate (PEM, with its chain) and its key.

    Raises
    ------
    CertificateError : they cannot be read, or do not belong together.
    """
    return _identity(certificate, key, generated=False)


def generated_identity(directory: Path, host: str, now: datetime.datetime) -> ServiceIdentity:
    """Return the identity that is kept in ``directory``, which is generated if there is none yet.

    Parameters
    ----------
    directory : only its owner should be able to read it.
    host : name or address that the certificate is for; devices that pin it do not look at that.
    now : the time, with a zone.

    Raises
    ------
    CertificateError : one of the two files is there without the other, or they cannot be used.
    EnrolmentError : the directory cannot be made.
    """
    certificate, key = directory / _CERTIFICATE, directory / _KEY
    if certificate.exists() != key.exists():
        missing = key if certificate.exists() else certificate
        raise CertificateError(f"{missing} is missing; bring it back, or remove the other one for a new pair")
    if not certificate.exists():
        private_directory(directory)
        _generate(certificate, key, host, now)
    return _identity(certificate, key, generated=True)


def _generate(certificate: Path, key: Path, host: str, now: datetime.datetime) -> None:
    """Write a new key, and a certificate that it has signed itself."""
    private = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "recfleet coordinator")])
    names: list[x509.GeneralName] = [x509.DNSName("localhost")]
    try:
        names.append(x509.IPAddress(ipaddress.ip_address(host)))
    except ValueError:
        if host and host != "localhost" and host.isascii():
            names.append(x509.DNSName(host))
    signed = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(private.public_key())
        .serial_number(x509.random_serial_number())
        # Clocks of devices may be slow.
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + _LIFETIME)
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .sign(private, hashes.SHA256())
    )
    secret = private.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    try:
        for path, contents in ((key, secret), (certificate, signed.public_bytes(serialization.Encoding.PEM))):
            with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
                file.write(contents)
    except OSError as error:
        raise CertificateError(f"{error.filename}: {error.strerror}") from error


def _identity(certificate: Path, key: Path, *, generated: bool) -> ServiceIdentity:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    try:
        # The first certificate in the file is the service's own; its chain follows.
        first = x509.load_pem_x509_certificates(certificate.read_bytes())[0]
        context.load_cert_chain(certificate, key, password=_no_password)
    except ssl.SSLError as error:
        reason = error.reason or str(error)
        raise CertificateError(
            f"{certificate} and {key} cannot be used together: {reason.lower().replace('_', ' ')}"
        ) from error
    except OSError as error:
        raise CertificateError(f"{error.filename or certificate}: {error.strerror}") from error
    except ValueError as error:
        raise CertificateError(f"{certificate} holds no certificate in PEM: {error}") from error
    return ServiceIdentity(context, first.fingerprint(hashes.SHA256()).hex(), generated)


def _no_password() -> bytes:
    """Say that there is none; otherwise OpenSSL would ask on the terminal."""
    raise CertificateError("the key is protected by a password; write one without, that only you can read")
