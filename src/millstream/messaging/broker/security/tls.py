"""The certificate of a broker, and that of an authority which its clients must come from; renewed while it serves."""

from __future__ import annotations

import logging
import ssl
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from millstream.core.tls_files import KeyPairError, load_key_pair, openssl_reason
from millstream.messaging.broker.settings import BrokerSettings
from millstream.messaging.errors import BrokerCredentialsError, MissingExtraError

if TYPE_CHECKING:
    import grpc


_log = logging.getLogger(__name__)


class ServerTls(msgspec.Struct, frozen=True):
    """Certificate chain and key (PEM), and the authority of the clients' certificates; without it they need none.

    What was read from files, which ``files`` names, is read again when they change; see :class:`CertificateReloader`.
    """

    certificate: bytes
    key: bytes
    client_ca: bytes | None = None
    files: BrokerSettings | None = None

    def __repr__(self) -> str:
        return "<ServerTls>"

    def credentials(self) -> grpc.ServerCredentials:
        """The same as gRPC takes it."""
        try:
            import grpc
        except ImportError as error:
            raise MissingExtraError from error
        must = self.client_ca is not None
        if self.files is None:
            return grpc.ssl_server_credentials([(self.key, self.certificate)], self.client_ca, must)
        renewal: Any = CertificateReloader(
            self, self.files
        )  # gives None where nothing is new, which grpc's types do not know
        return grpc.dynamic_ssl_server_credentials(self.configuration(), renewal, must)

    def configuration(self) -> grpc.ServerCertificateConfiguration:
        """The certificates that gRPC presents to clients."""
        import grpc

        return grpc.ssl_server_certificate_configuration([(self.key, self.certificate)], self.client_ca)


class CertificateReloader:
    """Looks at *files* whenever a client connects, and gives gRPC what they hold by now; at first that is *present*.

    Connections that are there already are kept. Files that cannot be used (one of a pair may not have been written yet)
    change nothing: that is logged, once, and they are read again when they have changed again.
    """

    def __init__(self, present: ServerTls, files: BrokerSettings) -> None:
        self._present = present
        self._files = files
        self._seen: Sequence[object] = ()  # looks once in any case: they may have changed since they were read
        self._lock = threading.Lock()

    def __call__(self) -> grpc.ServerCertificateConfiguration | None:
        with self._lock:
            found = self._changed()
        return None if found is None else found.configuration()

    def _changed(self) -> ServerTls | None:
        stamps = _stamps(self._files)
        if stamps == self._seen:
            return None
        self._seen = stamps
        try:
            found = read_tls(self._files)
        except BrokerCredentialsError as error:
            _log.warning("the broker keeps its present certificate: %s", error)
            return None
        if found is None or found == self._present:
            return None
        self._present = found
        _log.info("the broker has a new certificate from %s", self._files.tls_certificate)
        return found


def read_tls(settings: BrokerSettings) -> ServerTls | None:
    """The files that *settings* name; None where they name none.

    Raises :class:`BrokerCredentialsError` where one cannot be read, or the key is not that of the certificate.
    """
    if not settings.tls_certificate and not settings.tls_key:
        if settings.tls_client_ca:
            raise BrokerCredentialsError(
                "setting broker.tls_client_ca requires broker.tls_certificate and broker.tls_key: set these two as well"
            )
        return None
    certificate = _read(settings.tls_certificate, "tls_certificate")
    key = _read(settings.tls_key, "tls_key")
    try:
        load_key_pair(ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), settings.tls_certificate, settings.tls_key)
    except KeyPairError as error:
        raise BrokerCredentialsError(f"settings broker.tls_certificate and broker.tls_key: {error}") from error
    return ServerTls(certificate, key, _read_authority(settings.tls_client_ca), settings)


def _stamps(settings: BrokerSettings) -> Sequence[object]:
    """A value that changes when one of the files changes."""
    found: list[object] = []
    for path in filter(None, (settings.tls_certificate, settings.tls_key, settings.tls_client_ca)):
        try:
            status = Path(path).stat()
            found.append((status.st_ino, status.st_mtime_ns, status.st_size))
        except OSError as error:
            found.append(error.errno)
    return found


def _read_authority(path: str) -> bytes | None:
    if not path:
        return None
    data = _read(path, "tls_client_ca")
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_verify_locations(cadata=data.decode("ascii"))
    except (OSError, ValueError) as error:
        reason = f"OpenSSL: {openssl_reason(error)}" if isinstance(error, OSError) else "it is not ASCII text"
        raise BrokerCredentialsError(
            f"setting broker.tls_client_ca: {path} is not a PEM certificate ({reason}): give the PEM file of the "
            "authority that signs the clients' certificates (it contains -----BEGIN CERTIFICATE-----)"
        ) from error
    return data


def _read(path: str, name: str) -> bytes:
    if not path:
        raise BrokerCredentialsError(f"setting broker.{name} is missing: set both the certificate and its key")
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise BrokerCredentialsError(f"setting broker.{name}: cannot read {path}: {error.strerror}") from error
