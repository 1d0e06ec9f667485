"""The application: pages, the interface for programs, files, and the gate before them all."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp

from millstream.console import batch_pages, copy_pages, policy_pages, road_pages, work_pages
from millstream.console.events import Events
from millstream.console.finding import find
from millstream.console.page import THEMES, Pages, local_path, read_form, sentence
from millstream.console.rendering import Assets, make_templates
from millstream.console_settings import Role
from millstream.core.errors import MillstreamError
from millstream.rest.access import AccessError, ForgedError
from millstream.rest.api import api_routes, error_answer, status_of
from millstream.rest.bodies import answer
from millstream.rest.desk import Desk
from millstream.rest.gate import Gate
from millstream.rest.signing import COOKIE, address_of, require, set_visit, visit_of

LOCAL_NAMES = ("localhost", "127.0.0.1", "[::1]")
_YEAR = 365 * 24 * 3600
_MOST_SIGN_IN = 10_000


class Console:
    """The console of *desk*. :attr:`app` is to be served; within :meth:`running` the node is watched."""

    def __init__(self, desk: Desk) -> None:
        self.desk = desk
        assets = Assets()
        self._pages = Pages(desk, make_templates(assets, desk.clock.now))
        self._events = Events(desk, self._pages)
        routes = [
            *api_routes(desk),
            Route("/static/{name}", assets.serve),
            Route("/events", self._events.serve),
            Route("/sign-in", self._sign_in_page, methods=["GET"]),
            Route("/sign-in", self._sign_in, methods=["POST"]),
            Route("/sign-out", self._sign_out, methods=["POST"]),
            Route("/theme", self._theme),
            Route("/find", self._pages.show("error.html", find)),
            *road_pages.routes(self._pages),
            *batch_pages.routes(self._pages),
            *work_pages.routes(self._pages),
            *policy_pages.routes(self._pages),
            *copy_pages.routes(self._pages),
        ]
        handlers = {HTTPException: self._missing, MillstreamError: self._refused, Exception: self._broken}
        inner = Starlette(routes=routes, exception_handlers=handlers)
        settings = desk.settings
        hosts = (*LOCAL_NAMES, *settings.hosts) if settings.hosts or not desk.access.has_users else ()
        self.app: ASGIApp = Gate(inner, hosts, secure=settings.secure)

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Watch the node; at the end of the block open streams end too."""
        self.desk.watch.start()
        try:
            yield
        finally:
            self._events.close()
            await run_in_threadpool(self.desk.watch.stop)

    def end_streams(self) -> None:
        """Let pages that are open go, so that the server can end."""
        self._events.close()

    async def _sign_in_page(self, request: Request) -> Response:
        visit = visit_of(request, self.desk.access) or self.desk.access.new_visit()
        back = local_path(request.query_params.get("back", "/"))
        if not self.desk.access.has_users:
            return RedirectResponse(back, 303)
        response = HTMLResponse(self._pages.render("sign_in.html", request, None, visit, back=back, error=None))
        set_visit(response, self.desk.access, visit)
        return response

    async def _sign_in(self, request: Request) -> Response:
        access = self.desk.access
        visit = visit_of(request, access)
        back = "/"
        try:
            form = await read_form(request, _MOST_SIGN_IN)
            back = local_path(form.get("back", ["/"])[-1])
            if visit is None or not access.is_form_token(visit, form.get("token", [""])[-1]):
                raise ForgedError
            name, password = (form.get(field, [""])[-1] for field in ("name", "password"))
            signed = await run_in_threadpool(access.sign_in, name, password, address_of(request))
        except MillstreamError as error:
            if isinstance(error, AccessError):
                self.desk.trail.add("nobody", "failed sign-in", address_of(request))
            visit = visit or access.new_visit()
            html = self._pages.render("sign_in.html", request, None, visit, back=back, error=sentence(error))
            response: Response = HTMLResponse(html, status_of(error))
            set_visit(response, access, visit)
            return response
        self.desk.trail.add(name, "sign in", address_of(request))
        response = RedirectResponse(back, 303)
        set_visit(response, access, signed)
        return response

    async def _sign_out(self, request: Request) -> Response:
        access = self.desk.access
        visit = visit_of(request, access)
        form = await read_form(request, _MOST_SIGN_IN)
        if visit is not None and access.is_form_token(visit, form.get("token", [""])[-1]):
            access.sign_out(visit)
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

    async def _broken(self, request: Request, _error: Exception) -> Response:
        text = "This is a fault of the console itself; the log of the process says where."
        if _is_for_programs(request):
            return answer({"code": "internal", "message": text}, 500)
        return await self._error_page(request, text, 500)

    async def _error_page(self, request: Request, text: str, status: int) -> Response:
        access = self.desk.access
        visit = visit_of(request, access) or access.new_visit()
        try:
            who = await run_in_threadpool(require, request, access, Role.VIEWER)
        except MillstreamError:
            who = None
        return HTMLResponse(self._pages.render("error.html", request, who, visit, error=text, status=status), status)


def _is_for_programs(request: Request) -> bool:
    """Whether errors are answered as JSON, and not as a page."""
    return request.url.path.startswith(("/api/", "/healthz", "/readyz", "/metrics"))
