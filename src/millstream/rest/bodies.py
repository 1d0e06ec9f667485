"""Requests and answers over HTTP: bounded bodies, canonical errors."""

from __future__ import annotations

from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from millstream.core.errors import BusyError, InputError, MillstreamError, NotFoundError

_encoder = msgspec.json.Encoder()


class TooLargeError(InputError):
    """The body of the request is larger than allowed."""


async def read_body(request: Request, limit: int) -> bytes:
    """The body of *request*; nothing beyond *limit* bytes is ever held. Raises :class:`TooLargeError`."""
    chunks, size = list[bytes](), 0
    async for chunk in request.stream():
        size += len(chunk)
        if size > limit:
            raise TooLargeError(f"the body has more than the {limit:,} bytes that are allowed")
        chunks.append(chunk)
    return b"".join(chunks)


def answer(value: Any, status: int = 200, *, media: str = "application/json", **headers: str) -> Response:
    """*value* as JSON; underscores in the names of *headers* stand for hyphens."""
    named = {name.replace("_", "-"): text for name, text in headers.items()}
    return Response(_encoder.encode(value), status, named, media)


def refusal(error: MillstreamError, code: str | None = None) -> Response:
    """*error* as an answer: ``{"code": …, "message": …}`` with the status of its kind."""
    status, kind = next((row[1:] for row in _KINDS if isinstance(error, row[0])), (500, "internal"))
    body = {"code": code or getattr(error, "code", kind), "message": str(error)}
    after = getattr(error, "retry_after", None)
    return answer(body, status, **({} if after is None else {"Retry_After": str(max(1, round(after)))}))


_KINDS: list[tuple[type[MillstreamError], int, str]] = [
    (TooLargeError, 413, "too_large"),
    (InputError, 400, "bad_request"),
    (NotFoundError, 404, "not_found"),
    (BusyError, 503, "busy"),
]
