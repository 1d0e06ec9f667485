"""The trusted time-stamping authorities, as certificates, and the check of tokens against them."""

from __future__ import annotations

import contextlib
import itertools
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from millstream.anchoring.errors import TimestampError
from millstream.anchoring.timestamps.token import TimestampToken, parse_token, parsing, response_of

if TYPE_CHECKING:
    from cryptography.x509 import Certificate

MAX_CERTIFICATE_BYTES = 1 << 20
"""The most bytes of a file of certificates."""

_UNKNOWN_ISSUER = ("issuer certificate", "self-signed certificate", "self signed certificate")
"""What OpenSSL says of certificates that lead to no trusted one."""


class TrustedAuthorities:
    """Authorities whose certificates lead to one of *certificates* that is self-signed; the others are between."""

    def __init__(self, certificates: Iterable[Certificate]) -> None:
        unique = list(dict.fromkeys(certificates))
        self._roots = [each for each in unique if each.subject == each.issuer]
        self._others = [each for each in unique if each.subject != each.issuer]
        if not self._roots:
            raise TimestampError(
                "the trusted certificates contain no root certificate: add the self-signed certificate of the authority"
            )

    def verify(self, token: bytes, document: bytes) -> TimestampToken:
        """The statement of the token *token* (DER) about *document*, after its signature and certificates were
        verified.

        These must have been valid at its time. Raises :class:`TimestampError`.
        """
        found = parse_token(token)
        found.require_imprint(document)
        try:
            self._require_trusted(found, self._roots)
        except TimestampError as error:
            for root in self._namesakes():
                with contextlib.suppress(TimestampError):
                    self._require_trusted(found, [root])
                    return found
            if any(words in str(error) for words in _UNKNOWN_ISSUER):
                todo = "if you trust this authority, add its root certificate to the trusted certificates"
                raise TimestampError(f"{error}; {todo}") from error
            raise
        return found

    def _require_trusted(self, token: TimestampToken, roots: Sequence[Certificate]) -> None:
        from rfc3161_client import VerifierBuilder

        with parsing(f"the token of {token.authority}"):
            verifier = VerifierBuilder(roots=list(roots), intermediates=list(self._others)).build()
            verifier.verify(response_of(token.data), token.imprint)

    def _namesakes(self) -> Sequence[Certificate]:
        """The roots that share their name with another one, of which the library tries one only: a renewed root."""
        names = Counter(each.subject for each in self._roots)
        return [each for each in self._roots if names[each.subject] > 1]


def parse_authorities(*files: bytes, names: Sequence[str] = ()) -> TrustedAuthorities:
    """The authorities whose certificates are in *files* (PEM, or one in DER), which errors call *names*.

    Raises :class:`TimestampError`.
    """
    from cryptography.x509 import load_der_x509_certificate, load_pem_x509_certificates

    found: list[Certificate] = []
    for data, name in itertools.zip_longest(files, names):
        what = f"the file of certificates {name}" if name else "a file of certificates"
        if len(data) > MAX_CERTIFICATE_BYTES:
            raise TimestampError(
                f"{what} has more than {MAX_CERTIFICATE_BYTES:,} bytes, the limit: remove unneeded certificates"
            )
        with parsing(what):
            if data.startswith(b"\x30"):
                found.append(load_der_x509_certificate(data))
            else:
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
    return parse_authorities(data, names=[str(path)])
