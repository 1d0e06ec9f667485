"""The interface for programs: every endpoint under ``/api/v1``, its description, health and figures.

An answer is JSON; a table is CSV with ``?format=csv``. An error is ``{"code": …, "message": …}`` with the status of its
kind.
"""

from __future__ import annotations

import asyncio
from functools import cached_property
from typing import Any

import msgspec
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from millstream.core.decoding import prepared
from millstream.core.errors import InputError, MillstreamError
from millstream.core.metric_collection.prometheus import CONTENT_TYPE, prometheus_text
from millstream.core.plain_reasons import field_reason
from millstream.mill.policies.saving import PolicyConflictError
from millstream.rest.access_control import (
    AuthenticationError,
    InvalidFormTokenError,
    PermissionDeniedError,
    TooManySignInsError,
)
from millstream.rest.app_context import AppContext
from millstream.rest.authentication import require_role
from millstream.rest.bodies import JSON, RETRY_AFTER, answer, error_response, read_body
from millstream.rest.csv_tables import to_csv
from millstream.rest.description import describe
from millstream.rest.endpoint import PREFIX, ApiRequest, Endpoint, FileDownload, NoBody, PartialListing
from millstream.rest.queries import QueryError, convert, unique_parameters
from millstream.rest.views import all_endpoints
from millstream.rest.views.policies import PolicyDetail
from millstream.rest.views.system import Health, look_at_health
from millstream.settings.console import Role
from millstream.status.metrics import status_metrics
from millstream.status.snapshot import UnreadablePartError

MOST_BODY = 20 << 20

READY_SECONDS = 1.0
"""How long ``/readyz`` repeats its last answer."""


class MissingVersionError(InputError):
    """The header If-Match is missing: send the version that you read, or `none` for a new policy."""


_STATUSES: list[tuple[type[MillstreamError], int, str]] = [
    (AuthenticationError, 401, "sign_in"),
    (PermissionDeniedError, 403, "forbidden"),
    (InvalidFormTokenError, 403, "forged"),
    (TooManySignInsError, 429, "too_many_requests"),
    (MissingVersionError, 428, "unconditional"),
    (PolicyConflictError, 412, "changed_meanwhile"),
]


def api_routes(app: AppContext) -> list[BaseRoute]:
    """The routes of the interface for programs."""
    routes: list[BaseRoute] = [
        Route(PREFIX + endpoint.path, _Handler(app, endpoint).answer, methods=[endpoint.method])
        for endpoint in all_endpoints()
    ]
    others = _ServiceRoutes(app)
    return [
        *routes,
        Route(f"{PREFIX}/openapi.json", others.openapi),
        Route("/metrics", others.metrics),
        Route("/healthz", others.alive),
        Route("/readyz", others.ready),
    ]


def status_of(error: MillstreamError) -> int:
    """The status with which *error* is answered."""
    return error_answer(error).status_code


def error_answer(error: MillstreamError) -> Response:
    """*error* as JSON."""
    for kind, status, code in _STATUSES:
        if isinstance(error, kind):
            response = error_response(error, code)
            response.status_code = status
            if status == 401:
                response.headers["www-authenticate"] = 'Basic realm="Millstream", charset="UTF-8"'
            return response
    response = error_response(error)
    if response.status_code == 500:  # raised on purpose, so no fault of ours: things are not as they would have to be
        response.status_code = 409
    return response


def query_of(endpoint: Endpoint, request: Request) -> Any:
    """The checked query of the request. Raises :class:`QueryError`."""
    given = unique_parameters([*request.path_params.items(), *request.query_params.multi_items()])
    return convert({name: value for name, value in given.items() if name != "format"}, endpoint.query)


class _Handler:
    def __init__(self, app: AppContext, endpoint: Endpoint) -> None:
        self._app, self._endpoint = app, endpoint

    async def answer(self, request: Request) -> Response:
        try:
            return await self._answer(request)
        except MillstreamError as error:
            return error_answer(error)

    async def _answer(self, request: Request) -> Response:
        endpoint = self._endpoint
        role = endpoint.role or Role.ADMIN
        principal = await run_in_threadpool(require_role, request, self._app.access, role)
        form = request.query_params.get("format", "json")
        if form not in ("json", "csv") or (form == "csv" and not endpoint.is_table):
            raise QueryError(f"unsupported format {form[:20]!r}: use json, or csv for a list")
        query = query_of(endpoint, request)
        body: Any = NoBody()
        if endpoint.body is not NoBody:
            body = _body(await read_body(request, MOST_BODY, JSON), endpoint.body)
        if_match = request.headers.get("if-match", "").strip('"') or None
        if endpoint.conditional and if_match is None:
            raise MissingVersionError
        found = await run_in_threadpool(endpoint.handler, self._app, ApiRequest(query, body, principal, if_match))
        return self._respond(found, form)

    def _respond(self, found: Any, form: str) -> Response:
        if isinstance(found, FileDownload):
            name = f'attachment; filename="{_safe(found.name)}"'
            return Response(found.data, media_type=found.media, headers={"content-disposition": name})
        if form == "csv":
            if isinstance(found, PartialListing) and found.unreadable:  # a table of text cannot say what is missing
                part, reason = next(iter(found.unreadable.items()))
                raise UnreadablePartError(f"{part} cannot be read: {reason}; for the other rows, ask for format=json")
            name = f'attachment; filename="{self._endpoint.name}.csv"'
            data = to_csv(found, self._endpoint.answer.__args__[0])
            return Response(data, media_type="text/csv; charset=utf-8", headers={"content-disposition": name})
        response = answer(found)
        if isinstance(found, PolicyDetail):
            response.headers["etag"] = f'"{found.version}"'
        return response


class _ServiceRoutes:
    def __init__(self, app: AppContext) -> None:
        self._app = app
        self._look: asyncio.Future[Health] | None = None
        self._looked_at = 0.0

    async def openapi(self, _request: Request) -> Response:
        return Response(await run_in_threadpool(lambda: self._description), media_type="application/json")

    @cached_property
    def _description(self) -> bytes:
        """Made once, outside the event loop, which the broker and the registry share: it takes a tenth of a second."""
        return msgspec.json.encode(describe())

    async def metrics(self, request: Request) -> Response:
        try:
            await run_in_threadpool(require_role, request, self._app.access, Role.VIEWER)
        except MillstreamError as error:
            return error_answer(error)
        return Response(await run_in_threadpool(self._metrics_text), media_type=CONTENT_TYPE)

    def _metrics_text(self) -> str:
        return prometheus_text(status_metrics(self._app.poller, self._app.node.metrics.figures()))

    async def alive(self, _request: Request) -> Response:
        return answer({"status": "ok"})

    async def ready(self, _request: Request) -> Response:
        """Everybody may ask: however many do, one look at a time is made, in one thread, and one in a second."""
        now = self._app.clock.monotonic()
        if self._look is None or (self._look.done() and now - self._looked_at >= READY_SECONDS):
            self._looked_at = now
            self._look = asyncio.ensure_future(run_in_threadpool(look_at_health, self._app))
        found = await asyncio.shield(self._look)
        if found.ready:
            return answer({"status": "ready"})
        return answer({"status": "not ready"}, 503, Retry_After=str(RETRY_AFTER))


def _body(data: bytes, kind: type[Any]) -> Any:
    try:
        return msgspec.json.decode(data, type=prepared(kind))
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise QueryError(field_reason(error, kind)) from error


def _safe(name: str) -> str:
    return "".join(sign if sign.isascii() and (sign.isalnum() or sign in "._-") else "_" for sign in name)
