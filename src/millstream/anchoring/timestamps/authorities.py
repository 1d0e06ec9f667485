"""The time-stamping authorities that somebody trusts, as certificates, and the check of tokens against them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from millstream.anchoring.errors import TimestampError
from millstream.anchoring.timestamps.token import TimestampToken, parse_token, parsing, response_of

if TYPE_CHECKING:
    from collections.abc import Iterable

    from cryptography.x509 import Certificate
    from rfc3161_client import Verifier

MAX_CERTIFICATE_BYTES = 1 << 20
"""The most bytes of a file of certificates."""


class TrustedAuthorities:
    """Authorities whose certificates lead to one of *certificates* that is self-signed; the others are between."""

    def __init__(self, certificates: Iterable[Certificate]) -> None:
        unique = list(dict.fromkeys(certificates))
        self._roots = [each for each in unique if _is_self_signed(each)]
        self._others = [each for each in unique if each not in self._roots]
        if not self._roots:
            raise TimestampError(
                "there is no root certificate among those that you trust: add the self-signed one of the authority"
            )

    def verify(self, token: bytes, document: bytes) -> TimestampToken:
        """What the token *token* (DER) says of *document*, once its signature and its certificates were verified.

        These must have been valid at its time. Raises :class:`TimestampError`.
        """
        found = parse_token(token)
        found.require_imprint(document)
        with parsing(f"the token of {found.authority}"):
            self._verifier().verify(response_of(token), found.imprint)
        return found

    def _verifier(self) -> Verifier:
        from rfc3161_client import VerifierBuilder

        return VerifierBuilder(roots=list(self._roots), intermediates=list(self._others)).build()


def parse_authorities(*files: bytes) -> TrustedAuthorities:
    """The authorities whose certificates are in *files* (PEM). Raises :class:`TimestampError`."""
    from cryptography.x509 import load_pem_x509_certificates

    found: list[Certificate] = []
    for data in files:
        if len(data) > MAX_CERTIFICATE_BYTES:
            raise TimestampError(f"a file of certificates must not have more than {MAX_CERTIFICATE_BYTES:,} bytes")
        with parsing("a file of certificates (PEM)"):
            found += load_pem_x509_certificates(data)
    return TrustedAuthorities(found)


def read_authorities(path: Path) -> TrustedAuthorities:
    """The authorities whose certificates are in the file *path* (PEM). Raises :class:`TimestampError`."""
    try:
        with path.open("rb") as file:
            data = file.read(MAX_CERTIFICATE_BYTES + 1)
    except OSError as error:
        raise TimestampError(
            f"cannot read the certificates of time-stamping authorities: {path}: {error.strerror}"
        ) from error
    return parse_authorities(data)


def _is_self_signed(certificate: Certificate) -> bool:
    try:
        certificate.verify_directly_issued_by(certificate)
    except Exception:  # of many kinds: another signature, another name, or a key that it cannot use
        return False
    return True
