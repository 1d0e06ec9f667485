"""The registry over HTTP: operations in, resolution and status out (Sidetree v1.0, "REST API").

==========  ===========================================  ====================================================
POST        ``/sidetree/v1/operations``                  one operation
POST        ``/sidetree/v1/operations/bulk``             one operation a line, an outcome a line
GET         ``/sidetree/v1/operations/{id}``             where an operation stands
GET         ``/sidetree/v1/identifiers/{did}``           the document of a DID, short or long form
GET         ``/sidetree/v1/identifiers/{did}/operations``  where the recorded operations of a DID stand, in pages
GET         ``/sidetree/v1/ledger``                      the ledger, a page of entries at a time
GET         ``/sidetree/v1/files/{cid}``                 a file of an anchored batch
GET         ``/healthz``, ``/openapi.json``              liveness; the description of this interface
==========  ===========================================  ====================================================
"""

from __future__ import annotations

from codecs import BOM_UTF8
from collections.abc import Awaitable, Callable, Sequence

import msgspec
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp

from millstream.anchoring.ledger_source import NODE_LEDGER
from millstream.anchoring.registry import DidRegistry, OperationStatus, SubmissionResult, UnknownOperationError
from millstream.anchoring.remote_cas import NODE_FILES
from millstream.anchoring.sidetree import RequestError, parse_did
from millstream.core.errors import MillstreamError, NotFoundError
from millstream.rest.bodies import JSON_LINES, answer, read_body
from millstream.rest.endpoint import Listing, PageQuery
from millstream.rest.openapi import describe
from millstream.rest.queries import convert, unique_parameters
from millstream.rest.registry_sources import RegistrySources
from millstream.rest.submit_middleware import SubmitMiddleware, registry_error

BULK_BYTES = 64 << 20
BULK_LINES = 10_000
RESOLUTION_MEDIA = 'application/ld+json;profile="https://w3id.org/did-resolution"'

_lines = msgspec.json.Encoder()
Handler = Callable[[Request], Awaitable[Response]]


class UnresolvedDidError(NotFoundError):
    """Nothing is known of the DID."""


def registry_app(registry: DidRegistry) -> ASGIApp:
    """The application of *registry*, which the caller starts and closes."""
    handlers, sources = _RegistryHandlers(registry), RegistrySources(registry)
    others = Starlette(
        routes=[
            Route("/sidetree/v1/operations", handlers.only_post),
            Route("/sidetree/v1/operations/bulk", handlers.submit_bulk, methods=["POST"]),
            Route("/sidetree/v1/operations/{id}", handlers.operation),
            Route("/sidetree/v1/identifiers/{did:path}/operations", handlers.operations_of),
            Route("/sidetree/v1/identifiers/{did:path}", handlers.resolve),
            Route(NODE_LEDGER, sources.ledger),
            Route(f"{NODE_FILES}/{{cid}}", sources.file),
            Route("/healthz", handlers.health),
            Route("/openapi.json", handlers.openapi),
        ],
        exception_handlers={MillstreamError: _refuse, HTTPException: _plain},
    )
    return SubmitMiddleware(registry, others)


class _RegistryHandlers:
    def __init__(self, registry: DidRegistry) -> None:
        self._registry = registry
        self._profile = registry.versions.latest.profile

    async def only_post(self, _request: Request) -> Response:
        raise HTTPException(405, "operations are posted", {"Allow": "POST"})

    async def submit_bulk(self, request: Request) -> Response:
        lines = (await read_body(request, BULK_BYTES, JSON_LINES)).removeprefix(BOM_UTF8).splitlines()
        if len(lines) > BULK_LINES:
            raise RequestError("too_many", f"a bulk request has at most {BULK_LINES:,} lines, not {len(lines):,}")
        outcomes = await run_in_threadpool(self._registry.acceptance.submit_many, lines)
        return Response(b"".join(map(_outcome_line, outcomes)), media_type="application/jsonl")

    async def operation(self, request: Request) -> Response:
        name = request.path_params["id"]
        status = await run_in_threadpool(self._registry.status, name)
        if status is None:
            raise UnknownOperationError(f"no operation {name[:100]!r} is recorded here")
        return answer(status)

    async def operations_of(self, request: Request) -> Response:
        did = parse_did(request.path_params["did"], self._profile)
        query = convert(unique_parameters(request.query_params.multi_items()), PageQuery)

        def page() -> Sequence[tuple[int, OperationStatus]]:
            rows = self._registry.store.statuses_page(did.suffix, after=query.after, limit=query.limit + 1)
            effects = self._registry.history.with_effects([status for _, status in rows])
            return [(place, status) for (place, _), status in zip(rows, effects, strict=True)]

        rows = await run_in_threadpool(page)
        following = str(rows[query.limit - 1][0]) if len(rows) > query.limit else None
        return answer(Listing([status for _, status in rows[: query.limit]], following))

    async def resolve(self, request: Request) -> Response:
        found = await run_in_threadpool(self._registry.history.resolve, request.path_params["did"])
        if found is None:
            raise UnresolvedDidError(f"nothing is known of {request.path_params['did'][:100]!r}")
        return answer(found, media=RESOLUTION_MEDIA)

    async def health(self, _request: Request) -> Response:
        return answer({"status": "ok", "instance": self._registry.instance})

    async def openapi(self, _request: Request) -> Response:
        return answer(describe(self._profile))


def _outcome_line(outcome: SubmissionResult) -> bytes:
    value: OperationStatus | dict[str, str | None] | None = outcome.status
    return _lines.encode(value or {"code": outcome.code, "message": outcome.error}) + b"\n"


async def _refuse(_request: Request, error: Exception) -> Response:
    assert isinstance(error, MillstreamError)
    return registry_error(error)


async def _plain(_request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    return answer({"code": "http", "message": error.detail}, error.status_code)
