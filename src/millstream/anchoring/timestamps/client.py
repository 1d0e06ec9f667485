"""Asking a time-stamping authority for a token, over HTTP (RFC 3161 §3.4)."""

from __future__ import annotations

from typing import Literal

from millstream.anchoring.errors import HttpError, TimestampError, TimestampRefusalError
from millstream.anchoring.http_reader import HttpReader, check_url, redacted_url
from millstream.anchoring.timestamps.authorities import TrustedAuthorities
from millstream.anchoring.timestamps.token import MAX_TOKEN_BYTES, TimestampToken, parse_token, parsing
from millstream.core.printable import MAX_SHOWN, printable

Digest = Literal["sha256", "sha512"]
"""The digests in which a document can be stamped."""

_STATUS = ("granted", "grantedWithMods", "rejection", "waiting", "revocationWarning", "revocationNotification")
"""The names of PKIStatus in RFC 3161 §2.4.2."""

_MAX_ANSWER_BYTES = MAX_TOKEN_BYTES + 1024


class TimestampClient:
    """Asks the authority at *url*. What it answers is verified with *trusted*, if that is given. Thread-safe.

    Raises :class:`~millstream.anchoring.http_reader.UrlError` for what is not an ``http`` or ``https`` URL.
    """

    def __init__(self, url: str, trusted: TrustedAuthorities | None = None, reader: HttpReader | None = None) -> None:
        check_url(url)
        self._url = url
        self._trusted = trusted
        self._reader = reader or HttpReader()

    @property
    def name(self) -> str:
        """The URL as it may be printed."""
        return redacted_url(self._url)

    def stamp(self, document: bytes, digest: Digest) -> TimestampToken:
        """A token for *document*: the authority learns only its *digest*.

        Raises :class:`TimestampRefusalError` where it refuses, :class:`HttpError` where it does not answer,
        :class:`TimestampError` where the answer is not a token for this request, or not of a trusted authority.
        """
        from rfc3161_client import HashAlgorithm, TimestampRequestBuilder

        builder = TimestampRequestBuilder().data(document).hash_algorithm(HashAlgorithm(digest.upper()))
        request = builder.build()
        body = self._ask(request.as_bytes())
        try:
            token = self._token_of(body, request.nonce)
            token.require_imprint(document)
        except TimestampError as error:
            raise TimestampError(f"{error}: ask the authority again, or use another one") from error
        return self._trusted.verify(token.data, document) if self._trusted else token

    def _token_of(self, body: bytes, expected_nonce: int | None) -> TimestampToken:
        """The token in the response *body*, which must be for the request with *expected_nonce*."""
        from rfc3161_client import decode_timestamp_response

        with parsing(f"the answer of {self.name}"):
            answer = decode_timestamp_response(body)
            status, said = answer.status, "; ".join(answer.status_string)
        if status > 1:
            word = _STATUS[status] if status < len(_STATUS) else f"status {status}"
            reason = printable(said, MAX_SHOWN) or "(no reason given)"
            raise TimestampRefusalError(f"{self.name}: the authority answered '{word}': {reason}")
        with parsing(f"the answer of {self.name}"):
            nonce, data = answer.tst_info.nonce, answer.time_stamp_token()
        if nonce != expected_nonce:
            raise TimestampError(f"{self.name}: the nonce in the response of the authority is not that of the request")
        return parse_token(data)

    def _ask(self, request: bytes) -> bytes:
        with self._reader.post(self._url, request, {"Content-Type": "application/timestamp-query"}) as answer:
            if answer.status != 200:
                raise HttpError(self.name, f"the server answered with status {answer.status}")
            return answer.read(_MAX_ANSWER_BYTES)
