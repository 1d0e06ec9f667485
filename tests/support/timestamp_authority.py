"""A time-stamping authority (RFC 3161): ``openssl ts`` behind a server on loopback, with a root of its own."""

from __future__ import annotations

import re
import subprocess
import threading
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Self

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

_CONFIG = """
[ tsa ]
default_tsa = authority
[ authority ]
serial = {folder}/serial
crypto_device = builtin
signer_digest = sha256
default_policy = 1.2.3.4.1
digests = {digests}
accuracy = {accuracy}
clock_precision_digits = 3
ess_cert_id_alg = sha256
"""
BEGIN = datetime(2020, 1, 1, tzinfo=UTC)
LATE = BEGIN + timedelta(days=365 * 60)


def place_of_time(token: bytes) -> int:
    """Where the year of the time of *token* (DER) begins; its fraction of a second has none to three digits."""
    found = re.search(rb"\x18[\x0f-\x13](?=20\d{12})", token)
    assert found is not None
    return found.end()


class TimestampRoot:
    """A root that issues certificates of authorities; ``path`` is its own certificate."""

    def __init__(self, folder: Path, name: str = "Example Root") -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder, self._key = folder, ec.generate_private_key(ec.SECP256R1())
        self._name = _subject(name)
        own = _builder(self._name, self._name, self._key.public_key(), LATE)
        signed = own.add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        self.certificate = signed.sign(self._key, hashes.SHA256())
        self.path = folder / "root.pem"
        self.path.write_bytes(self.certificate.public_bytes(Encoding.PEM))

    def issue(
        self,
        name: str,
        *,
        end: datetime = LATE,
        usage: tuple[x509.ObjectIdentifier, ...] = (ExtendedKeyUsageOID.TIME_STAMPING,),
        key: ec.EllipticCurvePrivateKey | None = None,
        serial: int | None = None,
    ) -> tuple[x509.Certificate, ec.EllipticCurvePrivateKey]:
        """A certificate for the authority *name*, valid until *end*, and its key."""
        key = key or ec.generate_private_key(ec.SECP256R1())
        builder = _builder(_subject(name), self._name, key.public_key(), end, serial)
        builder = builder.add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        if usage:
            builder = builder.add_extension(x509.ExtendedKeyUsage(usage), critical=True)
        return builder.sign(self._key, hashes.SHA256()), key


class TimestampAuthority:
    """An authority that *root* vouches for, listening within the block.

    ``answer`` may be set to change its answers: it is called with the request and the real answer, and returns a status
    and a body. ``requests`` counts what was asked.
    """

    def __init__(
        self,
        root: TimestampRoot,
        name: str = "Example TSA",
        *,
        end: datetime = LATE,
        usage: tuple[x509.ObjectIdentifier, ...] = (ExtendedKeyUsageOID.TIME_STAMPING,),
        digests: str = "sha256, sha512",
        accuracy: str = "secs:1",
    ) -> None:
        self.root, self.name = root, name
        self.folder = root.folder / name.replace(" ", "-")
        self.folder.mkdir()
        config = _CONFIG.format(folder=self.folder, digests=digests, accuracy=accuracy)
        (self.folder / "tsa.cnf").write_text(config, "utf-8")
        self.answer: Callable[[bytes, bytes], tuple[int, bytes]] = lambda _, real: (200, real)
        self.requests = 0
        self._turn = threading.Lock()
        self.renew_certificate(end=end, usage=usage)
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(self))
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.05})
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}/tsr"

    def renew_certificate(
        self, *, end: datetime = LATE, usage: tuple[x509.ObjectIdentifier, ...] = (ExtendedKeyUsageOID.TIME_STAMPING,)
    ) -> None:
        """Sign with a new key and certificate from now on."""
        certificate, key = self.root.issue(self.name, end=end, usage=usage)
        self.certificate = certificate
        (self.folder / "tsa.pem").write_bytes(certificate.public_bytes(Encoding.PEM))
        secret = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
        (self.folder / "tsa.key").write_bytes(secret)

    def reply(self, request: bytes) -> bytes:
        """The answer of ``openssl ts`` to *request*."""
        query, answer = self.folder / "query.tsq", self.folder / "answer.tsr"
        with self._turn:
            self.requests += 1
            query.write_bytes(request)
            answer.unlink(missing_ok=True)
            words = (
                "openssl ts -reply -config tsa.cnf -queryfile query.tsq -out answer.tsr -signer tsa.pem -inkey tsa.key"
            )
            subprocess.run(words.split(), cwd=self.folder, capture_output=True, check=False)
            return answer.read_bytes()

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


def _handler(authority: TimestampAuthority) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            assert self.headers["Content-Type"] == "application/timestamp-query"
            request = self.rfile.read(int(self.headers["Content-Length"]))
            status, body = authority.answer(request, authority.reply(request))
            self.send_response(status)
            self.send_header("Content-Type", "application/timestamp-reply")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    return Handler


def _subject(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey, end: datetime, serial: int | None = None
) -> x509.CertificateBuilder:
    builder = x509.CertificateBuilder().subject_name(subject).issuer_name(issuer).public_key(key)
    numbered = builder.serial_number(serial or x509.random_serial_number())
    return numbered.not_valid_before(BEGIN).not_valid_after(end)
