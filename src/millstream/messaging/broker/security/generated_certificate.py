"""A certificate that a broker makes for itself where it is given none, so that clients can encrypt at once."""

from __future__ import annotations

import contextlib
import ipaddress
import secrets
from collections.abc import Collection
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING

from millstream.core.clock import MICROSECONDS, Clock
from millstream.core.durable import file_lock, replacing
from millstream.messaging.broker.security.tls import ServerTls, read_tls
from millstream.messaging.broker.settings import BrokerSettings
from millstream.messaging.errors import BrokerCredentialsError, MissingExtraError

if TYPE_CHECKING:
    from cryptography import x509

CERTIFICATE = "broker-tls.pem"
KEY = "broker-tls.key"

_VALID = timedelta(days=3650)
_RENEWED_BEFORE = timedelta(days=30)


def generated_tls(folder: Path, hosts: Collection[str], clock: Clock) -> ServerTls:
    """The broker's own certificate in *folder*, for *hosts* and this machine; made where none is there that is valid.

    Its authority, whose key is not stored, is in the file too: a client that checks certificates is given that file
    (Rust's takes no certificate that is its own authority). Raises :class:`BrokerCredentialsError`
    where it cannot be written, and :class:`MissingExtraError` without the package that makes it.
    """
    for host in {"0.0.0.0", "::"}.intersection(hosts):  # noqa: S104 (nothing listens here)
        raise BrokerCredentialsError(
            f"cannot create a certificate for {host}, which is not a name of this machine: listen on a "
            "host name, or set broker.tls_certificate and broker.tls_key"
        )
    files = BrokerSettings(tls_certificate=str(folder / CERTIFICATE), tls_key=str(folder / KEY))
    now = datetime.fromtimestamp(clock.now() / MICROSECONDS, UTC)
    names = {*map(_normal, hosts), "localhost", "127.0.0.1", "::1"}
    try:
        found, known = _read(files, now)
        if found is None or not names <= known:
            with file_lock(folder / f".{CERTIFICATE}.lock"):
                found, known = _read(files, now)
                if found is None or not names <= known:
                    _make(folder, sorted(names | known), now)
                    found = read_tls(files)
    except ImportError as error:
        raise MissingExtraError from error
    except ValueError as error:
        shown = ", ".join(map(repr, hosts))
        raise BrokerCredentialsError(f"cannot create a certificate for {shown}: {error}") from error
    except OSError as error:
        raise BrokerCredentialsError(
            f"cannot write {folder / CERTIFICATE}: {error.strerror}; use --no-broker-tls, or set "
            "broker.tls_certificate and broker.tls_key"
        ) from error
    assert found is not None
    return found


def _read(files: BrokerSettings, now: datetime) -> tuple[ServerTls | None, set[str]]:
    """The certificate in *files* and its names, if it stays valid for a while."""
    from cryptography import x509

    with contextlib.suppress(BrokerCredentialsError, ValueError, x509.ExtensionNotFound):
        found = read_tls(files)
        assert found is not None
        certificate = x509.load_pem_x509_certificate(found.certificate)
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        if certificate.not_valid_after_utc > now + _RENEWED_BEFORE:
            return found, {str(name.value) for name in names}
    return None, set()


def _normal(host: str) -> str:
    """*host*, an address as certificates write it."""
    try:
        return str(ipaddress.ip_address(host))
    except ValueError:
        return host


def _make(folder: Path, names: list[str], now: datetime) -> None:
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

    authority, key = ec.generate_private_key(ec.SECP256R1()), ec.generate_private_key(ec.SECP256R1())
    number = secrets.token_hex(8)  # clients look for an authority by its name: no two have the same
    issuer, subject = _name(f"Millstream broker's authority {number}"), _name("Millstream broker")
    alternatives = x509.SubjectAlternativeName([_general(each) for each in names])

    def signed(name: x509.Name, owner: ec.EllipticCurvePrivateKey, *, is_authority: bool) -> bytes:
        builder = x509.CertificateBuilder().subject_name(name).issuer_name(issuer).public_key(owner.public_key())
        builder = builder.serial_number(x509.random_serial_number())
        builder = builder.not_valid_before(now - timedelta(days=1)).not_valid_after(now + _VALID)
        length = 0 if is_authority else None
        builder = builder.add_extension(x509.BasicConstraints(ca=is_authority, path_length=length), critical=True)
        if not is_authority:
            builder = builder.add_extension(alternatives, critical=False)
        return builder.sign(authority, hashes.SHA256()).public_bytes(Encoding.PEM)

    secret = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    with replacing(folder / KEY, mode=0o600) as file:  # first: a certificate without its key is not a pair
        file.write(secret)
    with replacing(folder / CERTIFICATE) as file:
        file.write(signed(subject, key, is_authority=False) + signed(issuer, authority, is_authority=True))


def _name(text: str) -> x509.Name:
    from cryptography import x509
    from cryptography.x509.oid import NameOID

    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])


def _general(name: str) -> x509.GeneralName:
    from cryptography import x509

    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        return x509.DNSName(name)
