"""The errors of a client's call, by the status of the answer.

::

    ClientError                  .code is the protocol's status (0 without one), .request_id names the call in logs
    ├── NotRunningError          the client was not started, or is closed
    │   └── ForkedError          the process was forked from one that has clients
    ├── StartupError             no route of a topic, or no settings, in time
    ├── TransportError           no answer: the connection broke, or the time was up
    ├── PartialFailureError      some messages of a call failed; .results says which
    ├── BadRequestError          400xx
    │   └── InvalidHandleError   40013: the receipt handle has expired, or the message is done
    ├── UnauthorizedError        401xx, 402xx
    ├── ForbiddenError           403xx
    ├── ResourceNotFoundError    404xx
    ├── PayloadError             413xx, 431xx: too large, or empty
    ├── ThrottledError           429xx
    ├── ServerFailedError        500xx, 504xx
    └── UnsupportedError         501xx, 505xx, and codes that are not known
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from millstream.core.errors import InputError, NotFoundError
from millstream.messaging.errors import MessagingError
from millstream.messaging.protocol import v2


class ClientError(MessagingError):
    """The call failed."""

    def __init__(self, message: str | None = None, *, code: int = 0, request_id: str = "") -> None:
        super().__init__(message)
        self.code = code
        self.request_id = request_id


class NotRunningError(ClientError):
    """The client is not running: use it in an `async with` block, or start it first."""


class ForkedError(NotRunningError):
    """gRPC does not work after a fork: start clients after the fork; with multiprocessing, use the method "spawn"."""


class StartupError(ClientError):
    """The client did not receive its routes and settings in time."""


class TransportError(ClientError):
    """There was no answer. ``reason`` is gRPC's name for why: ``UNAVAILABLE``, ``DEADLINE_EXCEEDED``, …"""

    transient = True

    def __init__(self, message: str | None = None, *, code: int = 0, request_id: str = "", reason: str = "") -> None:
        super().__init__(message, code=code, request_id=request_id)
        self.reason = reason


class PartialFailureError(ClientError):
    """Some messages of a call were not confirmed as *done* (stored, acknowledged).

    ``results`` has something for each, in order: an error, or its receipt, or None where there is nothing to tell.
    """

    def __init__(self, results: Sequence[Any], done: str = "stored") -> None:
        failed = [result for result in results if isinstance(result, ClientError)]
        text = f"{len(failed)} of {len(results)} messages were not confirmed as {done}, the first because: {failed[0]}"
        super().__init__(text, code=failed[0].code, request_id=failed[0].request_id)
        self.results = results


class BadRequestError(ClientError, InputError):
    """The request is invalid."""


class InvalidHandleError(BadRequestError):
    """The receipt handle has expired, or the message was already acknowledged."""


class UnauthorizedError(ClientError):
    """The server cannot authenticate the caller: check the access key and its secret."""


class ForbiddenError(ClientError):
    """The access key does not permit this call."""


class ResourceNotFoundError(ClientError, NotFoundError):
    """The topic, group or message does not exist."""


class PayloadError(BadRequestError):
    """The message is too large, or empty."""


class ThrottledError(ClientError):
    """The server is busy: try again later."""

    transient = True


class ServerFailedError(ClientError):
    """The server failed."""

    transient = True


class UnsupportedError(ClientError):
    """The server does not support this call."""


_BY_CLASS: dict[int, type[ClientError]] = {
    400: BadRequestError,
    401: UnauthorizedError,
    402: UnauthorizedError,
    403: ForbiddenError,
    404: ResourceNotFoundError,
    413: PayloadError,
    429: ThrottledError,
    431: PayloadError,
    500: ServerFailedError,
    504: ServerFailedError,
}


def error_class(code: int) -> type[ClientError]:
    """The class of error that the status *code* is raised as."""
    if code == v2.INVALID_RECEIPT_HANDLE:
        return InvalidHandleError
    return _BY_CLASS.get(code // 100, UnsupportedError)


def status_error(status: v2.Status, request_id: str = "") -> ClientError | None:
    """The error that *status* stands for; None where all is well."""
    return code_error(status.code, status.message, request_id)


def code_error(code: int, text: str, request_id: str = "") -> ClientError | None:
    """Like :func:`status_error`, of the *code* and *text* of a status."""
    return None if code == v2.OK else error_class(code)(text or None, code=code, request_id=request_id)


def is_definite(error: Exception) -> bool:
    """Whether a send that failed with *error* would fail again in the same way, so that it is not repeated.

    The workflow document retries "according to the error type"; throttling is the one 4xx that passes.
    """
    return isinstance(error, ClientError) and 40000 <= error.code < 50000 and not isinstance(error, ThrottledError)


def may_be_done(error: Exception) -> bool:
    """Whether the server may have done what was asked in a call that failed with *error*: it did not answer, or it
    failed itself."""
    return not is_definite(error) and not isinstance(error, ThrottledError)


def unknown_result(earlier: ClientError, last: ClientError, doubt: str, advice: str) -> ClientError:
    """The error of a call that failed with *earlier*, which :func:`may_be_done`, and with *last* when it was repeated:
    it is of the class of *earlier*, and its text ends with the *doubt*, with *last* and with *advice*."""
    text = f"{earlier}; {doubt}, although the repeated call failed: {last}; {advice}"
    unknown = type(earlier)(text, code=earlier.code, request_id=earlier.request_id)
    if isinstance(unknown, TransportError) and isinstance(earlier, TransportError):
        unknown.reason = earlier.reason
    unknown.__cause__ = last
    return unknown


def call_failure(error: BaseException) -> ClientError:
    """The error of a call that others share and that ended with *error*."""
    if isinstance(error, ClientError):
        return error
    failure = ClientError(f"the call failed unexpectedly: {error!r}")
    failure.__cause__ = error
    return failure
