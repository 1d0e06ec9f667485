"""Requests and answers over HTTP: bounded bodies of known types, canonical errors."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterator
from typing import Any

import msgspec
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import Scope

from millstream.core.errors import BusyError, InputError, MillstreamError, NotFoundError

JSON = ("application/json",)
JSON_LINES = ("application/jsonl", "application/x-ndjson", "application/ndjson", "application/json")
"""JSON values, one a line: no type is registered for it, so those in use are taken, and that of each line."""

RETRY_AFTER = 5
"""Seconds after which a client tries again what was busy."""

_encoder = msgspec.json.Encoder()


class TooLargeError(InputError):
    """The body of the request is larger than allowed."""


class MediaTypeError(InputError):
    """The body of the request is of a type that is not accepted here."""


class ClientDisconnectedError(InputError):
    """The client left before its request was complete."""


async def read_body(
    request: Request, limit: int, media: Collection[str] = (), *, take: Callable[[int], object] | None = None
) -> bytes:
    """The body of *request*, of one of the types *media*; nothing beyond *limit* bytes is ever held.

    *take* is called with the size of each part before that is kept, and may refuse it by an error.

    Raises :class:`TooLargeError`, :class:`MediaTypeError`, :class:`ClientDisconnectedError`.
    """
    check_head(request.scope, limit, media)
    chunks, size = list[bytes](), 0
    try:
        async for chunk in request.stream():
            size += len(chunk)
            check_size(size, limit)
            if take is not None:
                take(len(chunk))
            chunks.append(chunk)
    except ClientDisconnect as error:
        raise ClientDisconnectedError from error
    return b"".join(chunks)


def check_head(scope: Scope, limit: int, media: Collection[str]) -> None:
    """Check what the headers say of the body, before any of it is read: its length, its type and its encoding.

    A body without a type is taken for one of *media*, as RFC 9110 (8.3) allows. Raises :class:`TooLargeError`,
    :class:`MediaTypeError`.
    """
    for name, value in scope["headers"]:
        if name == b"content-length":
            check_size(int(value), limit)
        elif name == b"content-type" and media:
            _check_type(value.decode("latin-1"), media)
        elif name == b"content-encoding" and value.strip().lower() not in (b"", b"identity"):
            raise MediaTypeError(
                f"unsupported content encoding {value[:50].decode('latin-1')!r}: send the body without Content-Encoding"
            )


def check_size(size: int, limit: int) -> None:
    """Raises :class:`TooLargeError` where *size* is more than *limit* bytes."""
    if size > limit:
        raise TooLargeError(f"the body of the request is larger than the limit of {limit:,} bytes")


def _check_type(given: str, media: Collection[str]) -> None:
    kind, _, parameters = given.partition(";")
    wanted = " or ".join(media)
    if kind.strip().lower() not in media:
        text = f"the content type {given[:100]!r} is not accepted here: send the header Content-Type: {wanted}"
        raise MediaTypeError(text)
    charset = next((value for name, value in _parameters(parameters) if name == "charset"), "utf-8")
    if charset not in ("utf-8", "utf8", "us-ascii"):
        raise MediaTypeError(f"unsupported charset {charset[:50]!r}: send {wanted} in UTF-8")


def _parameters(text: str) -> Iterator[tuple[str, str]]:
    for parameter in text.split(";"):
        name, _, value = parameter.partition("=")
        yield name.strip().lower(), value.strip().strip('"').lower()


def answer(value: Any, status: int = 200, *, media: str = "application/json", **headers: str) -> Response:
    """*value* as JSON; underscores in the names of *headers* stand for hyphens."""
    named = {name.replace("_", "-"): text for name, text in headers.items()}
    return Response(_json(value), status, named, media)


def _json(value: Any) -> bytes:
    try:
        return _encoder.encode(value)
    except UnicodeEncodeError:  # text of others with half a surrogate pair, which JSON can escape
        return json.dumps(msgspec.to_builtins(value), separators=(",", ":")).encode("ascii")


def error_response(error: MillstreamError, code: str | None = None) -> Response:
    """*error* as an answer: ``{"code": …, "message": …}`` with the status of its kind; with 503 it says when to try
    again."""
    otherwise = (503, "busy") if error.transient else (500, "internal")
    status, kind = next((row[1:] for row in _KINDS if isinstance(error, row[0])), otherwise)
    body = {"code": code or getattr(error, "code", kind), "message": str(error)}
    after = getattr(error, "retry_after", RETRY_AFTER if status == 503 else None)
    return answer(body, status, **({} if after is None else {"Retry_After": str(max(1, round(after)))}))


def internal_error() -> Response:
    """The answer where the server has failed, which its log explains."""
    return answer({"code": "internal", "message": "internal error of the server: see the log of its process"}, 500)


_KINDS: list[tuple[type[MillstreamError], int, str]] = [
    (TooLargeError, 413, "too_large"),
    (MediaTypeError, 415, "unsupported_media_type"),
    (InputError, 400, "bad_request"),
    (NotFoundError, 404, "not_found"),
    (BusyError, 503, "busy"),
]
