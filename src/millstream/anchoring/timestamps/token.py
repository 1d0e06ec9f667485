"""Time-stamp tokens (RFC 3161 §2.4.2): what one says, read from its DER bytes. Signatures are not checked here."""

from __future__ import annotations

import contextlib
import hashlib
import re
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import msgspec

from millstream.anchoring.errors import TimestampError
from millstream.core.clock import MICROSECONDS
from millstream.core.extras import missing_package
from millstream.core.printable import MAX_SHOWN, printable

if TYPE_CHECKING:
    from cryptography.x509 import Certificate
    from rfc3161_client import Accuracy, SignedData, TimeStampResponse

MAX_TOKEN_BYTES = 64 << 10
"""The most bytes of a token; with two certificates one has about 2,000."""

DIGESTS = {
    "2.16.840.1.101.3.4.2.1": "sha256",
    "2.16.840.1.101.3.4.2.2": "sha384",
    "2.16.840.1.101.3.4.2.3": "sha512",
}
"""The digests that are accepted, by their object identifiers."""

_GRANTED = bytes.fromhex("3003020100")
"""The status of an answer that contains a token."""

_VERIFY_ERROR = re.compile(r'data: "Verify error:\s*([^"]+)"')
_REASON = re.compile(r'reason: "([^"]+)"')
"""What OpenSSL says in the error of the library, which shows all its parts."""

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class TimestampToken(msgspec.Struct, frozen=True):
    """What the token ``data`` (DER) says: a document with the digest ``imprint`` existed no later than ``time``.

    ``time`` and ``ends_at``, the end of the signing certificate, are microseconds since the epoch (UTC). ``digest`` is
    ``sha256``, ``sha384`` or ``sha512``; ``authority`` is the subject of the signing certificate (RFC 4514).
    """

    data: bytes
    time: int
    digest: str
    imprint: bytes
    authority: str
    ends_at: int

    def require_imprint(self, document: bytes) -> None:
        """Raise :class:`TimestampError` where the token is not for *document*."""
        if hashlib.new(self.digest, document).digest() != self.imprint:
            raise TimestampError(
                f"the token of {self.authority} is a time stamp of other data: the digests are different"
            )


def parse_token(data: bytes) -> TimestampToken:
    """The content of the token *data* (DER). Raises :class:`TimestampError`."""
    from cryptography.x509 import ExtendedKeyUsage, ExtensionNotFound
    from cryptography.x509.oid import ExtendedKeyUsageOID

    with parsing("the token"):
        answer = response_of(data)
        info = answer.tst_info
        accuracy: Accuracy | None = info.accuracy  # the library declares it without None
        oid, imprint = info.message_imprint.hash_algorithm.dotted_string, info.message_imprint.message
        signer = _signer(answer.signed_data)
        authority = printable(signer.subject.rfc4514_string(), MAX_SHOWN)
        ends_at = _microseconds(signer.not_valid_after_utc)
        time = _latest(info.gen_time, accuracy)
        try:
            usage = signer.extensions.get_extension_for_class(ExtendedKeyUsage)
        except ExtensionNotFound:
            usage = None
    if usage is None or not usage.critical or list(usage.value) != [ExtendedKeyUsageOID.TIME_STAMPING]:
        raise TimestampError(
            f"the certificate of {authority} is not for time stamps: its extended key usage must be critical and "
            "contain only timeStamping"
        )
    if oid not in DIGESTS:
        raise TimestampError(
            f"the token of {authority} uses a digest that is not accepted (object identifier {oid}); accepted: "
            f"{', '.join(DIGESTS.values())}"
        )
    return TimestampToken(data, time, DIGESTS[oid], imprint, authority, ends_at)


def response_of(token: bytes) -> TimeStampResponse:
    """The answer (``TimeStampResp``) with *token* in it, as the library reads tokens. Use it within :func:`parsing`."""
    from rfc3161_client import decode_timestamp_response

    if len(token) > MAX_TOKEN_BYTES:
        raise TimestampError(f"the token has {len(token):,} bytes; the limit is {MAX_TOKEN_BYTES:,} bytes")
    content = _GRANTED + token
    size = len(content).to_bytes(3).lstrip(b"\0")
    head = bytes([0x30, 0x80 | len(size)]) + size if len(content) > 127 else bytes([0x30, len(content)])
    return decode_timestamp_response(head + content)


@contextlib.contextmanager
def parsing(what: str) -> Iterator[None]:
    """Turns the errors of the library, which are of many kinds, into :class:`TimestampError` about *what*.

    Without the library, a ``MissingPackageError`` names the extra to install.
    """
    try:
        yield
    except TimestampError:
        raise
    except ImportError as error:
        raise missing_package(error) or error from error
    except Exception as error:
        text = str(error) or type(error).__name__
        reasons = _VERIFY_ERROR.findall(text) or _REASON.findall(text) or [text]
        raise TimestampError(f"{what} is not valid: {printable(reasons[0], MAX_SHOWN)}") from error


def _signer(signed: SignedData) -> Certificate:
    """The certificate of the one signer.

    It must be the only one of its issuer and serial number: otherwise the certificate that is shown need not be the one
    that verifies the signature.
    """
    from cryptography.x509 import load_der_x509_certificate

    infos = list(signed.signer_infos)
    if len(infos) != 1:
        raise TimestampError(f"the token has {len(infos)} signers, but must have exactly one")
    certificates = [load_der_x509_certificate(each) for each in signed.certificates]
    wanted = (infos[0].issuer, infos[0].serial_number)
    found = [each for each in certificates if (each.issuer, each.serial_number) == wanted]
    if len(found) != 1:
        raise TimestampError(f"the token has {len(found)} certificates of its signer, but must have exactly one")
    return found[0]


def _latest(time: datetime, accuracy: Accuracy | None) -> int:
    """The latest time (microseconds) at which a token of *time* was made.

    The library cuts off fractions of a second, so that a second is added.
    """
    latest = _microseconds(time) + MICROSECONDS
    if accuracy is not None:
        latest += (accuracy.seconds or 0) * MICROSECONDS + (accuracy.millis or 0) * 1000 + (accuracy.micros or 0)
    return latest


def _microseconds(time: datetime) -> int:
    return (time - _EPOCH) // timedelta(microseconds=1)
