"""The certificates that the settings of a node name, and until when they are valid."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import msgspec

from millstream.ingest.broker_url import parse_broker
from millstream.messaging.broker.security.certificate_expiry import expiry_of
from millstream.settings import Settings


class CertificateExpiry(msgspec.Struct, frozen=True):
    """The certificate that ``setting`` names is in the file ``path`` and valid until ``ends_at`` (microseconds)."""

    setting: str
    path: str
    ends_at: int


def certificate_expiries(settings: Settings, failed: Callable[[str, Exception], object]) -> Sequence[CertificateExpiry]:
    """The expiry of each certificate of *settings*; *failed* is told of the setting whose file cannot be read."""
    found = []
    for setting, path in certificate_files(settings):
        try:
            found.append(CertificateExpiry(setting, path, expiry_of(Path(path))))
        except Exception as error:  # of whatever kind: one file that cannot be read hides none of the others
            failed(setting, error)
    return found


def certificate_files(settings: Settings) -> Iterator[tuple[str, str]]:
    """The settings that name a file of certificates, and the file."""
    broker = settings.broker
    named = {"broker.tls_certificate": broker.tls_certificate, "broker.tls_client_ca": broker.tls_client_ca}
    for log, role in settings.serve.ingest.items():
        address = parse_broker(role.url)
        named[f"serve.ingest.{log}.url (tls_certificate)"] = address.tls_certificate
        named[f"serve.ingest.{log}.url (tls_ca)"] = address.tls_ca
    yield from ((setting, path) for setting, path in named.items() if path)
