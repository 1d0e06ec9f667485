"""The application: pages, the interface for programs, files, and the gate before them all."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import AsyncIterator

import sqlalchemy as sa
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp

from millstream.console.events import Events
from millstream.console.page_renderer import THEMES, PageRenderer, local_path, read_form, sentence
from millstream.console.pages import page_modules
from millstream.console.rendering import Assets, make_templates
from millstream.core.errors import MillstreamError
from millstream.core.sql import SqlBusyError
from millstream.core.sql_failures import SqlFailure, describe_sql_failure
from millstream.rest.access_control import InvalidFormTokenError
from millstream.rest.api import api_routes, error_answer, status_of
from millstream.rest.app_context import AppContext
from millstream.rest.authentication import COOKIE, address_of, find_session, require_role, set_session_cookie
from millstream.rest.bodies import RETRY_AFTER, answer
from millstream.rest.ledger_files import LedgerFiles
from millstream.rest.security_headers import SecurityHeadersMiddleware
from millstream.settings.console import Role

_log = logging.getLogger(__name__)

LOCAL_NAMES = ("localhost", "127.0.0.1", "[::1]")
_YEAR = 365 * 24 * 3600
_MOST_SIGN_IN = 10_000


class Console:
    """The console of *app*. :attr:`asgi_app` is to be served; within :meth:`running` the node is watched."""

    def __init__(self, app: AppContext) -> None:
        self.app = app
        assets = Assets()
        self._pages = PageRenderer(app, make_templates(assets, app.clock.now))
        self._events = Events(app, self._pages)
        routes = [
            *api_routes(app),
            LedgerFiles(app.node).route,
            Route("/static/{name}", assets.serve),
            Route("/events", self._events.serve),
            Route("/sign-in", self._sign_in_page, methods=["GET"]),
            Route("/sign-in", self._sign_in, methods=["POST"]),
            Route("/sign-out", self._sign_out, methods=["POST"]),
            Route("/theme", self._theme),
            *(route for module in page_modules() for route in module.routes(self._pages)),
        ]
        handlers = {
            HTTPException: self._missing,
            MillstreamError: self._refused,
            sa.exc.OperationalError: self._without_database,
            sa.exc.InterfaceError: self._without_database,
            sa.exc.TimeoutError: self._without_database,
            Exception: self._broken,
        }
        inner = Starlette(routes=routes, exception_handlers=handlers)
        settings = app.settings
        hosts = (*LOCAL_NAMES, *settings.hosts) if settings.hosts or not app.access.has_users else ()
        self.asgi_app: ASGIApp = SecurityHeadersMiddleware(inner, hosts, secure=settings.secure)

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Watch the node; at the end of the block open streams end too."""
        self.app.poller.start()
        try:
            yield
        finally:
            self._events.close()
            await run_in_threadpool(self.app.poller.stop)

    def end_streams(self) -> None:
        """Let pages that are open go, so that the server can end."""
        self._events.close()

    async def _sign_in_page(self, request: Request) -> Response:
        session = await find_session(request, self.app.access) or self.app.access.new_session()
        back = local_path(request.query_params.get("back", "/"))
        if not self.app.access.has_users:
            return RedirectResponse(back, 303)
        response = HTMLResponse(self._pages.render("sign_in.html", request, None, session, back=back, error=None))
        set_session_cookie(response, self.app.access, session)
        return response

    async def _sign_in(self, request: Request) -> Response:
        access = self.app.access
        session = await find_session(request, access)
        back = "/"
        try:
            form = await read_form(request, _MOST_SIGN_IN)
            back = local_path(form.get("back", ["/"])[-1])
            if session is None or not access.is_form_token(session, form.get("token", [""])[-1]):
                raise InvalidFormTokenError
            name, password = (form.get(field, [""])[-1] for field in ("name", "password"))
            signed = await run_in_threadpool(access.sign_in, name, password, address_of(request))
        except MillstreamError as error:
            session = session or access.new_session()
            html = self._pages.render("sign_in.html", request, None, session, back=back, error=sentence(error))
            response: Response = HTMLResponse(html, status_of(error))
            set_session_cookie(response, access, session)
            return response
        response = RedirectResponse(back, 303)
        set_session_cookie(response, access, signed)
        return response

    async def _sign_out(self, request: Request) -> Response:
        access = self.app.access
        session = await find_session(request, access)
        form = await read_form(request, _MOST_SIGN_IN)
        if session is not None and access.is_form_token(session, form.get("token", [""])[-1]):
            await run_in_threadpool(access.sign_out, session, address_of(request))
        response = RedirectResponse("/sign-in" if access.has_users else "/", 303)
        response.delete_cookie(COOKIE)
        return response

    async def _theme(self, request: Request) -> Response:
        theme = request.query_params.get("set", "")
        response = RedirectResponse(local_path(request.query_params.get("back", "/")), 303)
        if theme in THEMES:
            response.set_cookie("millstream_theme", theme, max_age=_YEAR, samesite="strict", httponly=True)
        else:
            response.delete_cookie("millstream_theme")
        return response

    async def _missing(self, request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        if _is_for_programs(request):
            code = {404: "not_found", 405: "method_not_allowed"}.get(error.status_code, "http")
            response = answer({"code": code, "message": error.detail}, error.status_code)
            response.headers.update(error.headers or {})
            return response
        return await self._error_page(request, "There is no such page.", error.status_code)

    async def _refused(self, request: Request, error: Exception) -> Response:
        assert isinstance(error, MillstreamError)
        if _is_for_programs(request):
            return error_answer(error)
        return await self._error_page(request, sentence(error), status_of(error))

    async def _without_database(self, request: Request, error: Exception) -> Response:
        """A database failed below a view: it does not answer, is locked, or is full, or has no free connection."""
        _log.warning("a request failed: %s %s", request.method, request.url.path, exc_info=error)
        assert isinstance(error, SqlFailure)
        return await self._refused(request, SqlBusyError(f"the database {describe_sql_failure(error)}"))

    async def _broken(self, request: Request, _error: Exception) -> Response:
        text = "This is a fault of the console itself; the log of the process says where."
        if _is_for_programs(request):
            return answer({"code": "internal", "message": text}, 500)
        return await self._error_page(request, text, 500)

    async def _error_page(self, request: Request, text: str, status: int) -> Response:
        access = self.app.access
        session = await find_session(request, access) or access.new_session()
        try:
            principal = await run_in_threadpool(require_role, request, access, Role.VIEWER)
        except (MillstreamError, sa.exc.SQLAlchemyError):
            principal = None
        return HTMLResponse(
            self._pages.render("error.html", request, principal, session, error=text, status=status),
            status,
            {"retry-after": str(RETRY_AFTER)} if status == 503 else None,
        )


def _is_for_programs(request: Request) -> bool:
    """Whether errors are answered as JSON, and not as a page."""
    return request.url.path.startswith(("/api/", "/healthz", "/readyz", "/metrics"))
