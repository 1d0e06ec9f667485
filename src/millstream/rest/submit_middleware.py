"""Single operations over HTTP, many of them a commit.

Most of what a small request costs in a framework is the framework, so this one path is served without it. A request is
checked when it arrives; those that arrive while a commit runs are committed together, with one wake-up.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from typing import Any

import msgspec
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from millstream.anchoring.registry import (
    DatabaseBusyError,
    DidRegistry,
    ReadOnlyError,
    SubmissionResult,
    TooManyOpenError,
)
from millstream.anchoring.registry.operation_intake import CheckedRequest
from millstream.anchoring.sidetree import Operation, OperationType, created
from millstream.core.errors import BusyError, MillstreamError
from millstream.core.sql import patience_within, waiting_with
from millstream.rest.bodies import JSON, check_head, check_size, error_response, internal_error
from millstream.rest.direct_requests import DirectAnswer, DirectEndpoint, Headers

PATH = "/sidetree/v1/operations"
MAX_OPERATIONS = 256
"""Operations in a commit. With more, the first of them would wait for the checks of the last."""

_encoder = msgspec.json.Encoder()
_URL = PATH.encode("ascii")
_JSON = (b"content-type", b"application/json")
_SPECIAL = frozenset({b"content-encoding", b"transfer-encoding", b"expect", b"upgrade"})
_log = logging.getLogger(__name__)


class SubmitMiddleware:
    """Serves ``POST /sidetree/v1/operations`` of *registry*, and hands everything else to *app*.

    An operation waits at most *database_timeout* seconds for a database that does not answer.
    """

    def __init__(self, registry: DidRegistry, app: ASGIApp, *, database_timeout: float = 3.0) -> None:
        self._registry = registry
        self._patience = patience_within(database_timeout)
        self._profile = registry.versions.latest.profile
        self._app = app
        self._waiting: list[tuple[CheckedRequest, DirectAnswer]] = []
        self._task: asyncio.Task[None] | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"] != PATH or scope["method"] != "POST":
            await self._app(scope, receive, send)
            return
        try:
            check_head(scope, self._profile.max_operation_bytes, JSON)
            body = await _body(receive, self._profile.max_operation_bytes)
        except MillstreamError as error:
            await registry_error(error)(scope, receive, send)
            return
        if body is None:
            return
        future: asyncio.Future[tuple[int, Headers, bytes]] = asyncio.get_running_loop().create_future()
        self.submit(body, lambda *parts: None if future.done() else future.set_result(parts))
        status, headers, answer = await future
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": answer})

    # An endpoint of connections, without ASGI

    @property
    def direct(self) -> DirectEndpoint:
        """What answers requests without ASGI, if nothing about them is unusual."""
        return self

    @property
    def url(self) -> bytes:
        """The URL of the requests."""
        return _URL

    def takes(self, headers: Headers) -> bool:
        """Whether a request with *headers* is one of a whole operation, of a length and a type as they should be."""
        length = -1
        for name, value in headers:
            if name == b"content-length":
                length = int(value)
            elif name in _SPECIAL or (name == b"content-type" and value != b"application/json"):
                return False
        return 0 <= length <= self._profile.max_operation_bytes

    def submit(self, body: bytes, answer: DirectAnswer) -> None:
        """Take the operation *body* and call *answer* when it is durable, or refused."""
        try:
            checked = self._registry.acceptance.check(body)
        except Exception as error:  # as in a commit, it must not reach the parser of the connection
            asyncio.get_running_loop().call_soon(answer, *self._response(error))
            return
        self._waiting.append((checked, answer))
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._drain())

    async def _drain(self) -> None:
        """Commit what waits, again and again until nothing does."""
        while self._waiting:
            await self._read_on()
            group, self._waiting = self._waiting[:MAX_OPERATIONS], self._waiting[MAX_OPERATIONS:]
            outcomes: Sequence[SubmissionResult | Exception]
            try:
                with waiting_with(self._patience):
                    pending = self._registry.acceptance.commit([checked for checked, _ in group])
                results = await asyncio.wrap_future(pending)
                outcomes = results
            except DatabaseBusyError as error:  # those who have come meanwhile would wait for it as long again
                group, self._waiting = [*group, *self._waiting], []
                outcomes = [error] * len(group)
            except Exception as error:  # each of them is told, and the next group has its own chance
                outcomes = [error] * len(group)
            for (_, answer), outcome in zip(group, outcomes, strict=True):
                try:
                    answer(*self._response(outcome))
                except Exception:  # nor may one answer keep the others back
                    _log.exception("an answer failed: POST %s", PATH)
        self._task = None

    async def _read_on(self) -> None:
        """Let the event loop read what has already arrived: in a commit of its own it would cost more."""
        count = 0
        while count < len(self._waiting) < MAX_OPERATIONS:
            count = len(self._waiting)
            await asyncio.sleep(0)

    def _response(self, outcome: SubmissionResult | Exception) -> tuple[int, Headers, bytes]:
        try:
            if isinstance(outcome, Exception):
                raise outcome
            if outcome.fault is not None:  # the intake has logged it, and others may share it
                response = internal_error()
                return response.status_code, response.raw_headers, bytes(response.body)
            status = outcome.result()
            body = _encoder.encode(self._created(outcome.operation) or status)
        except MillstreamError as error:
            response = registry_error(error)
        except Exception:
            _log.exception("a request failed: POST %s", PATH)
            response = internal_error()
        else:
            length = str(len(body)).encode("ascii")
            return 200, [_JSON, (b"operation-id", status.id.encode("ascii")), (b"content-length", length)], body
        return response.status_code, response.raw_headers, bytes(response.body)

    def _created(self, operation: Operation | None) -> dict[str, Any] | None:
        if operation is None or operation.type != OperationType.CREATE:
            return None
        return created(operation, self._profile)


class RegistryUnavailableError(BusyError):
    """The registry cannot use its storage now: try again. The log of the node says why."""


def registry_error(error: MillstreamError) -> Response:
    """*error* as an answer; with 429 where too many operations are under way, with 409 where none are ever taken.

    Everybody may ask: where its storage is and what is wrong with it stands in the log of the process alone.
    """
    response = error_response(error, "too_many_requests" if isinstance(error, TooManyOpenError) else None)
    if isinstance(error, TooManyOpenError | ReadOnlyError):
        response.status_code = 429 if isinstance(error, TooManyOpenError) else 409
    elif response.status_code >= 500 and not isinstance(error, BusyError):
        _log.warning("a request of the registry failed: %s", error)
        return error_response(RegistryUnavailableError()) if error.transient else internal_error()
    return response


async def _body(receive: Receive, limit: int) -> bytes | None:
    """The body of the request, None where the client left; nothing beyond *limit* bytes is ever held.

    Raises :class:`~millstream.rest.bodies.TooLargeError`.
    """
    body = b""
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            return None
        body += bytes(message.get("body", b""))
        check_size(len(body), limit)
        if not message.get("more_body", False):
            return body
