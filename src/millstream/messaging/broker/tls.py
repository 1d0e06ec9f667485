"""The certificate of a broker, and that of an authority which its clients must come from."""

from __future__ import annotations

import ssl
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from millstream.messaging.broker.settings import BrokerSettings
from millstream.messaging.errors import AccessError, MissingExtraError

if TYPE_CHECKING:
    import grpc


class ServerTls(msgspec.Struct, frozen=True):
    """Certificate chain and key (PEM), and the authority of the clients' certificates; without it they need none."""

    certificate: bytes
    key: bytes
    client_ca: bytes | None = None

    def __repr__(self) -> str:
        return "<ServerTls>"

    def credentials(self) -> grpc.ServerCredentials:
        """The same as gRPC takes it."""
        try:
            import grpc
        except ImportError as error:
            raise MissingExtraError from error
        must = self.client_ca is not None
        return grpc.ssl_server_credentials([(self.key, self.certificate)], self.client_ca, must)


def read_tls(settings: BrokerSettings) -> ServerTls | None:
    """The files that *settings* name; None where they name none.

    Raises :class:`AccessError` where one cannot be read, or the key is not that of the certificate.
    """
    if not settings.tls_certificate and not settings.tls_key:
        if settings.tls_client_ca:
            raise AccessError("setting broker.tls_client_ca: the broker needs a tls_certificate and a tls_key as well")
        return None
    certificate = _read(settings.tls_certificate, "tls_certificate")
    key = _read(settings.tls_key, "tls_key")
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(
            settings.tls_certificate, settings.tls_key, password=_no_password
        )
    except (OSError, ValueError) as error:
        raise AccessError(
            f"settings broker.tls_certificate and tls_key: {settings.tls_certificate} and {settings.tls_key} are no "
            "pair of a certificate and its key in PEM, the key without a password"
        ) from error
    return ServerTls(certificate, key, _read_authority(settings.tls_client_ca))


def _read_authority(path: str) -> bytes | None:
    if not path:
        return None
    data = _read(path, "tls_client_ca")
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_verify_locations(cadata=data.decode())
    except (OSError, ValueError) as error:
        raise AccessError(f"setting broker.tls_client_ca: {path} is no certificate in PEM") from error
    return data


def _read(path: str, name: str) -> bytes:
    if not path:
        raise AccessError(f"setting broker.{name} is missing: a certificate and its key belong together")
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise AccessError(f"setting broker.{name}: cannot read {path}: {error.strerror}") from error


def _no_password() -> bytes:
    raise ValueError("the key has a password")
