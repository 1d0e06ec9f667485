"""Until when certificates are valid."""

from __future__ import annotations

from pathlib import Path

from millstream.core.clock import MICROSECONDS
from millstream.messaging.errors import BrokerCredentialsError, MissingExtraError


def expiry_of(path: Path) -> int:
    """The time at which the first of the PEM certificates in the file *path* expires (microseconds).

    Raises :class:`BrokerCredentialsError` where it cannot be read, and :class:`MissingExtraError` without the package
    that reads it.
    """
    try:
        from cryptography import x509
    except ImportError as error:
        raise MissingExtraError from error
    try:
        certificates = x509.load_pem_x509_certificates(path.read_bytes())
    except OSError as error:
        raise BrokerCredentialsError(f"cannot read the certificate {path}: {error.strerror}") from error
    except ValueError as error:
        raise BrokerCredentialsError(
            f"{path} has no valid PEM certificate: give a file with an undamaged block that begins with "
            "-----BEGIN CERTIFICATE-----"
        ) from error
    return min(round(one.not_valid_after_utc.timestamp()) * MICROSECONDS for one in certificates)
