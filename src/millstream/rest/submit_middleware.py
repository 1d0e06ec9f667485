"""Single operations over HTTP, many of them a commit.

Most of what a small request costs in a framework is the framework, so this one path is served without it; and what
arrives while a commit runs is read, checked and committed together, in one call and with one wake-up.
"""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from millstream.anchoring.registry import DidRegistry, ReadOnlyError, SubmissionResult, TooManyOpenError
from millstream.anchoring.sidetree import Operation, OperationType, created
from millstream.core.errors import MillstreamError
from millstream.rest.bodies import JSON, check_head, check_size, error_response

PATH = "/sidetree/v1/operations"
MAX_OPERATIONS = 256
"""Operations a commit. More would let the first of them wait for the checks of the last."""

_encoder = msgspec.json.Encoder()
_JSON = (b"content-type", b"application/json")


class SubmitMiddleware:
    """Serves ``POST /sidetree/v1/operations`` of *registry*, and hands everything else to *app*."""

    def __init__(self, registry: DidRegistry, app: ASGIApp) -> None:
        self._registry = registry
        self._profile = registry.versions.latest.profile
        self._app = app
        self._waiting: list[tuple[bytes, asyncio.Future[SubmissionResult]]] = []
        self._task: asyncio.Task[None] | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"] != PATH or scope["method"] != "POST":
            await self._app(scope, receive, send)
            return
        try:
            check_head(scope, self._profile.max_operation_bytes, JSON)
            body = await _body(receive, self._profile.max_operation_bytes)
            if body is None:
                return
            outcome = await self._submit(body)
            status = outcome.result()
        except MillstreamError as error:
            await registry_error(error)(scope, receive, send)
            return
        headers = [_JSON, (b"operation-id", status.id.encode("ascii"))]
        answer = _encoder.encode(self._created(outcome.operation) or status)
        headers.append((b"content-length", str(len(answer)).encode("ascii")))
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": answer})

    async def _submit(self, data: bytes) -> SubmissionResult:
        future: asyncio.Future[SubmissionResult] = asyncio.get_running_loop().create_future()
        self._waiting.append((data, future))
        if self._task is None:
            self._task = asyncio.create_task(self._drain())
        return await future

    async def _drain(self) -> None:
        """Submit what waits, again and again until nothing does."""
        while self._waiting:
            group, self._waiting = self._waiting[:MAX_OPERATIONS], self._waiting[MAX_OPERATIONS:]
            futures = [future for _, future in group]
            try:
                pending = self._registry.acceptance.submit_nowait([data for data, _ in group])
                outcomes = await asyncio.wrap_future(pending)
            except Exception as error:  # each of them is told, and the next group has its own chance
                for future in futures:
                    if not future.done():
                        future.set_exception(error)
                continue
            for future, outcome in zip(futures, outcomes, strict=True):
                if not future.done():  # a client that has left gets no answer
                    future.set_result(outcome)
        self._task = None

    def _created(self, operation: Operation | None) -> dict[str, Any] | None:
        if operation is None or operation.type != OperationType.CREATE:
            return None
        return created(operation, self._profile)


def registry_error(error: MillstreamError) -> Response:
    """*error* as an answer; with 429 where too many operations are under way, with 409 where none are ever taken."""
    response = error_response(error, "too_many_requests" if isinstance(error, TooManyOpenError) else None)
    if isinstance(error, TooManyOpenError | ReadOnlyError):
        response.status_code = 429 if isinstance(error, TooManyOpenError) else 409
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
