"""The headers of every call: the caller, the time, and the signature."""

from __future__ import annotations

import hashlib
import hmac
import itertools
import uuid
from datetime import UTC, datetime
from typing import Final

import msgspec

from millstream import __version__
from millstream.core.clock import MICROSECONDS, Clock

ALGORITHM: Final = "MQv2-HMAC-SHA1"
_LAST: Final = (1 << 48) - 1

Headers = tuple[tuple[str, str], ...]


class Credentials(msgspec.Struct, frozen=True):
    """An access key with its secret, and the token of a session that was opened with them, if any."""

    access_key: str
    secret: str
    session_token: str = ""

    def __repr__(self) -> str:
        return f"<Credentials of {self.access_key}>"


class Signer:
    """Makes the headers of the calls of one client."""

    def __init__(self, client_id: str, clock: Clock, *, namespace: str = "", credentials: Credentials | None = None):
        self._clock = clock
        self._credentials = credentials
        self._fixed: Headers = (
            ("x-mq-client-id", client_id),
            ("x-mq-language", "PYTHON"),
            ("x-mq-client-version", __version__),
            ("x-mq-protocol", "v2"),
        )
        if namespace:
            self._fixed += (("x-mq-namespace", namespace),)
        if credentials is not None and credentials.session_token:
            self._fixed += (("x-mq-session-token", credentials.session_token),)
        self._request = str(uuid.uuid4())[
            :24
        ]  # of one client they differ at the end; a new UUID a call costs 5 % of it
        self._requests = itertools.count()
        self._second = -1
        self._signed: Headers = ()

    def headers(self) -> Headers:
        """The headers of one call; the last is its id, ``x-mq-request-id``."""
        second = self._clock.now() // MICROSECONDS
        if second != self._second:
            self._second, self._signed = second, self._sign(second)
        return (*self._signed, ("x-mq-request-id", f"{self._request}{next(self._requests) & _LAST:012x}"))

    def _sign(self, second: int) -> Headers:
        time = datetime.fromtimestamp(second, UTC).strftime("%Y%m%dT%H%M%SZ")
        found = (*self._fixed, ("x-mq-date-time", time))
        if self._credentials is None:
            return found
        return (*found, ("authorization", authorization(self._credentials, time)))


def authorization(credentials: Credentials, time: str) -> str:
    """The header that proves knowledge of the secret at *time*, the value of ``x-mq-date-time``."""
    proof = hmac.new(credentials.secret.encode(), time.encode(), hashlib.sha1).hexdigest().upper()
    return f"{ALGORITHM} Credential={credentials.access_key}, SignedHeaders=x-mq-date-time, Signature={proof}"
