"""Certificates for tests of encrypted connections, from an authority that lives as long as the test."""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import NameOID

_BEGIN = datetime(2020, 1, 1, tzinfo=UTC)
_END = _BEGIN + timedelta(days=365 * 60)


class Authority:
    """Issues certificates into *folder*; its own is the file ``NAME-ca.pem`` there."""

    def __init__(self, folder: Path, name: str = "test") -> None:
        self._folder = folder
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = _subject(f"{name} authority")
        builder = _builder(self._name, self._name, self._key.public_key())
        certificate = builder.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        self.path = folder / f"{name}-ca.pem"
        self.path.write_bytes(certificate.sign(self._key, hashes.SHA256()).public_bytes(Encoding.PEM))

    def issue(self, name: str, end: datetime = _END, *, names: Sequence[str] = ("localhost",)) -> tuple[Path, Path]:
        """The files of a certificate for *name*, valid until *end* for *names* and 127.0.0.1, and of its key."""
        key = ec.generate_private_key(ec.SECP256R1())
        places = [*map(x509.DNSName, names), x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]
        builder = _builder(_subject(name), self._name, key.public_key(), end)
        signed = builder.add_extension(x509.SubjectAlternativeName(places), critical=False).sign(
            self._key, hashes.SHA256()
        )
        certificate, secret = self._folder / f"{name}.pem", self._folder / f"{name}.key"
        certificate.write_bytes(signed.public_bytes(Encoding.PEM))
        secret.write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
        return certificate, secret


def _subject(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey, end: datetime = _END
) -> x509.CertificateBuilder:
    builder = x509.CertificateBuilder().subject_name(subject).issuer_name(issuer).public_key(key)
    return builder.serial_number(x509.random_serial_number()).not_valid_before(_BEGIN).not_valid_after(end)
