"""The registry over HTTP: operations in, resolution and status out (Sidetree v1.0, "REST API").

Endpoints are declared where they are handled: their routes and ``/openapi.json`` follow from that.
``python -m millstream.rest.registry_app FILE`` writes the description for the network ``sidetree``.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
from codecs import BOM_UTF8
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from pathlib import Path
from types import MethodType
from typing import Any

import msgspec
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route
from starlette.types import ASGIApp

from millstream.anchoring.registry import DidRegistry, OperationStatus, SubmissionResult, UnknownOperationError
from millstream.anchoring.sidetree import SIDETREE, OperationType, Profile, RequestError, parse_did
from millstream.core.durable import write_durably
from millstream.core.errors import BusyError, MillstreamError, NotFoundError
from millstream.core.retry import NO_RETRY
from millstream.core.sql import waiting_with
from millstream.rest.bodies import JSON_LINES, answer, read_body
from millstream.rest.endpoint import EndpointRegistry, Listing, PageQuery
from millstream.rest.openapi import document, encode
from millstream.rest.queries import convert, unique_parameters
from millstream.rest.registry_sources import RegistrySources
from millstream.rest.registry_sources import endpoints as source_endpoints
from millstream.rest.submit_middleware import PATH, SubmitMiddleware, registry_error

BULK_BYTES = 64 << 20
BULK_BYTES_AT_ONCE = 2 * BULK_BYTES
"""What all bulk requests together may have sent, until each is answered: anybody may send many of them at once."""

BULK_SECONDS = 300.0
"""How long a bulk request may take to arrive: until then it holds memory that others need."""

BULK_LINES = 10_000
RESOLUTION_MEDIA = 'application/ld+json;profile="https://w3id.org/did-resolution"'

_lines = msgspec.json.Encoder()
_TEXTS = {
    400: "The request is invalid; the code names the rule",
    404: "Not found",
    408: "The rest of the request did not arrive in time",
    409: "This registry follows another one: it accepts no operations, and has no ledger of its own",
    413: "The body is too large; it is not read",
    415: "The content type is not application/json (bulk: application/jsonl) in UTF-8",
    429: "Too many open operations; see Retry-After",
    503: "The database does not answer, too many other operations failed, or too many bulk requests are being sent; "
    "see Retry-After",
}
_SUBMIT_ERRORS, _READ_ERRORS = (400, 408, 409, 413, 415, 429, 503), (400, 404, 503)
endpoints = EndpointRegistry()


class OperationRequest(msgspec.Struct, frozen=True):
    """An operation of Sidetree v1.0; its other members depend on the type."""

    type: OperationType


class RegistryOperationQuery(msgspec.Struct, frozen=True):
    """The id of an operation."""

    id: str


class RegistryDidQuery(msgspec.Struct, frozen=True):
    """A DID, in its short or long form."""

    did: str


class DidOperationsQuery(PageQuery, frozen=True, kw_only=True):
    """A page of the operations of a DID."""

    did: str


class RegistryHealth(msgspec.Struct, frozen=True):
    """The answering instance."""

    status: str
    instance: str


class UnresolvedDidError(NotFoundError):
    """Nothing is known of the DID."""


def registry_app(registry: DidRegistry, *, database_timeout: float = 3.0) -> ASGIApp:
    """The application of *registry*, which the caller starts and closes.

    *database_timeout* is how many seconds an operation waits for a database that does not answer.
    """
    handlers = {MillstreamError: _refuse, HTTPException: _plain}
    app = Starlette(routes=registry_routes(registry), exception_handlers=handlers)
    return SubmitMiddleware(registry, app, database_timeout=database_timeout)


def registry_routes(registry: DidRegistry) -> list[BaseRoute]:
    """The routes of the application."""
    handlers = _RegistryHandlers(registry)
    parts = ((handlers, endpoints), (RegistrySources(registry), source_endpoints))
    routes: list[BaseRoute] = [
        Route(endpoint.path, MethodType(endpoint.handler, part), methods=[endpoint.method])
        for part, declared in parts
        for endpoint in declared.all
    ]
    return [*routes, Route("/openapi.json", handlers.openapi)]


def describe(profile: Profile) -> dict[str, Any]:
    """The description of the interface, as OpenAPI 3.1, for a network of *profile*."""
    info = {"title": "Millstream registry of decentralized identifiers"}
    found = document(info, [*endpoints.all, *source_endpoints.all], _TEXTS)
    body = found["paths"][PATH]["post"]["requestBody"]
    body["description"] = f"One operation, at most {profile.max_operation_bytes:,} bytes of JSON"
    return found


class TooManyBulkRequestsError(BusyError):
    """Other bulk requests take all memory for them: try again, or send fewer operations in one request."""


class SlowBulkRequestError(BusyError):
    """The bulk request did not arrive whole within 5 minutes: send fewer operations in one request."""


class _ByteBudget:
    """At most *most* bytes that several requests hold at once; for one event loop."""

    def __init__(self, most: int) -> None:
        self._left = most

    @contextlib.contextmanager
    def reserving(self) -> Iterator[Callable[[int], None]]:
        """A function that reserves bytes until the end of the block. It raises :class:`TooManyBulkRequestsError`."""
        reserved = 0

        def take(size: int) -> None:
            nonlocal reserved
            if size > self._left:
                raise TooManyBulkRequestsError
            self._left -= size
            reserved += size

        try:
            yield take
        finally:
            self._left += reserved


class _RegistryHandlers:
    def __init__(self, registry: DidRegistry) -> None:
        self._registry = registry
        self._profile = registry.versions.latest.profile
        self._bulk_budget = _ByteBudget(BULK_BYTES_AT_ONCE)

    @endpoints.declare(
        "POST",
        PATH,
        operation_id="submit",
        request={"application/json": OperationRequest},
        response={"application/json": dict[str, Any]},
        response_text="Accepted: the resolution of a new DID, or the status of the operation",
        headers={"Operation-Id": "the id to ask for its status"},
        errors=_SUBMIT_ERRORS,
    )
    async def submit(self, _request: Request) -> Response:
        """Accept an operation; it is durable when the response is sent."""
        raise AssertionError(f"SubmitMiddleware serves POST {PATH}")

    @endpoints.declare(
        "POST",
        f"{PATH}/bulk",
        operation_id="submitBulk",
        request={JSON_LINES[0]: str},
        request_text="Operations, one per line",
        response={JSON_LINES[0]: Any},
        response_text="A line for each operation: its status, or an error",
        errors=_SUBMIT_ERRORS,
    )
    async def submit_bulk(self, request: Request) -> Response:
        """Accept many operations in one transaction."""
        with self._bulk_budget.reserving() as take:
            try:
                async with asyncio.timeout(BULK_SECONDS):
                    body = await read_body(request, BULK_BYTES, JSON_LINES, take=take)
            except TimeoutError:
                raise SlowBulkRequestError from None
            lines = bulk_lines(body)
            del body
            outcomes = await run_in_threadpool(self._registry.acceptance.submit_many, lines)
        return Response(b"".join(map(_outcome_line, outcomes)), media_type="application/jsonl")

    @endpoints.declare(
        "GET",
        f"{PATH}/{{id}}",
        RegistryOperationQuery,
        operation_id="operationStatus",
        response={"application/json": OperationStatus},
        errors=_READ_ERRORS,
    )
    async def operation(self, request: Request) -> Response:
        """Show the state of an operation."""
        name = request.path_params["id"]
        status = await run_in_threadpool(self._registry.status, name)
        if status is None:
            raise UnknownOperationError(
                f"unknown operation {name[:100]!r}: it was not submitted to this node, or its record has expired; "
                "check the id"
            )
        return answer(status)

    @endpoints.declare(
        "GET",
        "/sidetree/v1/identifiers/{did:path}/operations",
        DidOperationsQuery,
        operation_id="operationsOf",
        response={"application/json": Listing[OperationStatus]},
        errors=_READ_ERRORS,
    )
    async def operations_of(self, request: Request) -> Response:
        """List the states of the recorded operations of a DID by page, in the order of acceptance."""
        did = parse_did(request.path_params["did"], self._profile)
        query = convert(unique_parameters(request.query_params.multi_items()), PageQuery)

        def page() -> Sequence[tuple[int, OperationStatus]]:
            rows = self._registry.store.statuses_page(did.suffix, after=query.after, limit=query.limit + 1)
            effects = self._registry.history.with_effects([status for _, status in rows])
            return [(place, status) for (place, _), status in zip(rows, effects, strict=True)]

        rows = await run_in_threadpool(page)
        following = str(rows[query.limit - 1][0]) if len(rows) > query.limit else None
        return answer(Listing([status for _, status in rows[: query.limit]], following))

    @endpoints.declare(
        "GET",
        "/sidetree/v1/identifiers/{did:path}",
        RegistryDidQuery,
        operation_id="resolve",
        response={RESOLUTION_MEDIA.partition(";")[0]: dict[str, Any]},
        errors=_READ_ERRORS,
    )
    async def resolve(self, request: Request) -> Response:
        """Resolve a DID in its short or long form."""
        found = await run_in_threadpool(self._registry.history.resolve, request.path_params["did"])
        if found is None:
            raise UnresolvedDidError(
                f"unknown DID {request.path_params['did'][:100]!r}: no anchored operation creates it; check the DID, "
                "give its long form, or try again when its create operation is anchored"
            )
        return answer(found, media=RESOLUTION_MEDIA)

    @endpoints.declare("GET", "/healthz", response={"application/json": RegistryHealth}, errors=())
    async def health(self, _request: Request) -> Response:
        """Show whether the instance is alive."""
        return answer(RegistryHealth("ok", self._registry.instance))

    @endpoints.declare("GET", "/readyz", response={"application/json": RegistryHealth}, errors=(503,))
    async def ready(self, _request: Request) -> Response:
        """Show whether the database of the registry answers."""
        await run_in_threadpool(self._require_database)
        return answer(RegistryHealth("ready", self._registry.instance))

    def _require_database(self) -> None:
        with waiting_with(NO_RETRY):
            self._registry.store.require_database()

    async def openapi(self, _request: Request) -> Response:
        return Response(await run_in_threadpool(lambda: self._description), media_type="application/json")

    @cached_property
    def _description(self) -> bytes:
        return msgspec.json.encode(describe(self._profile))


def bulk_lines(body: bytes) -> list[bytes]:
    """The lines of a bulk request.

    Raises a :class:`RequestError` if there are more than :data:`BULK_LINES`, before there is an object for each.
    """
    count = body.count(b"\n") + body.count(b"\r") - body.count(b"\r\n") + (not body.endswith((b"\n", b"\r")))
    if count > BULK_LINES:
        raise RequestError(
            "too_many", f"the request has {count:,} lines; send at most {BULK_LINES:,} in one bulk request"
        )
    return body.removeprefix(BOM_UTF8).splitlines()


def _outcome_line(outcome: SubmissionResult) -> bytes:
    value: OperationStatus | dict[str, str | None] | None = outcome.status
    return _lines.encode(value or {"code": outcome.code, "message": outcome.error}) + b"\n"


async def _refuse(_request: Request, error: Exception) -> Response:
    assert isinstance(error, MillstreamError)
    return registry_error(error)


async def _plain(_request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    return answer({"code": "http", "message": error.detail}, error.status_code)


if __name__ == "__main__":
    write_durably(Path(sys.argv[1]), encode(describe(SIDETREE)))
