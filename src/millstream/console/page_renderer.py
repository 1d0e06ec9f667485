"""Common steps of every page: authenticate the caller, read in a thread, render, and turn errors into pages."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Mapping
from typing import Any
from urllib.parse import parse_qs, quote, urlsplit

import jinja2
import msgspec
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response

from millstream.console.multipart import read_multipart
from millstream.console.table_labels import label_cells
from millstream.core.decoding import prepared
from millstream.core.errors import InputError, MillstreamError
from millstream.core.plain_reasons import field_reason
from millstream.rest.access_control import AuthenticationError, InvalidFormTokenError, Session
from millstream.rest.api import MOST_BODY, status_of
from millstream.rest.app_context import AppContext
from millstream.rest.authentication import find_session, require_role, set_session_cookie
from millstream.rest.bodies import read_body
from millstream.rest.endpoint import ApiRequest, NoBody, NoQuery
from millstream.rest.principal import Principal
from millstream.rest.queries import convert
from millstream.settings.console import Role

THEMES = ("light", "dark")
MOST_FIELDS = 12_000
_LONGEST_NOTICE = 500
_TIMES = ("%Y-%m-%d %H:%M:%S.%f", "%Y-%m-%d %H:%M:%S", "%Y-%m-%d %H:%M", "%Y-%m-%d")

Look = Callable[["PageRequest"], Mapping[str, Any] | Response]
Handler = Callable[[Request], Any]


class FormError(InputError):
    """The form is not filled in as it has to be."""


class PageRequest:
    """One request of a page: who asks, in which session, what stands in its address, and the fields of its form."""

    def __init__(
        self,
        app: AppContext,
        request: Request,
        principal: Principal,
        session: Session,
        form: Mapping[str, list[str]],
    ) -> None:
        self.app = app
        self.principal = principal
        self._session = session
        self.path: Mapping[str, Any] = request.path_params
        self.query: Mapping[str, str] = dict(request.query_params)
        self._form = form

    def field(self, name: str, default: str = "") -> str:
        """The value of a field of the form."""
        return self._form.get(name, [default])[-1]

    def fields(self, name: str) -> list[str]:
        """All values of a field of the form."""
        return self._form.get(name, [])

    def ask(
        self, kind: type[Any] = NoQuery, body: Any = None, *, if_match: str | None = None, **more: Any
    ) -> ApiRequest[Any, Any]:
        """The same question to a view: *kind* out of path and query (empty fields count as not given) and *more*."""
        names = set(kind.__struct_fields__)
        given = {name: value for name, value in self.query.items() if name in names and value != ""}
        values = {**given, **{n: v for n, v in self.path.items() if n in names}, **more}
        return ApiRequest(convert(values, kind), NoBody() if body is None else body, self.principal, if_match)

    def redirect_with_notice(self, path: str, notice: str) -> Response:
        """Go to *path*, and say there what was done: signed, so that no other address can put text on a page."""
        mark = "&" if "?" in path else "?"
        signed = self.app.access.sign_notice(self._session, notice[:_LONGEST_NOTICE])
        return RedirectResponse(f"{path}{mark}notice={quote(signed)}", 303)


class PageRenderer:
    """Makes handlers of functions that look at *app* and return what a template shows."""

    def __init__(self, app: AppContext, templates: jinja2.Environment) -> None:
        self.app = app
        self._templates = templates

    def show(self, template: str, look: Look, role: Role = Role.VIEWER) -> Handler:
        """The handler of a page: *look* runs in a thread, *template* shows what it returns."""

        async def handler(request: Request) -> Response:
            return await self._answered(request, role, look, template)

        return handler

    def act(self, look: Look, role: Role = Role.OPERATOR, template: str = "confirm.html") -> Handler:
        """The handler of a form: checked to come from a page of this session, then like :meth:`show`."""

        async def handler(request: Request) -> Response:
            return await self._answered(request, role, look, template, is_form=True)

        return handler

    def render(self, name: str, request: Request, principal: Principal | None, session: Session, **values: Any) -> str:
        """The template *name* with what all pages know."""
        theme = request.cookies.get("millstream_theme", "")
        here = request.url.path + (f"?{request.url.query}" if request.url.query else "")
        came_from = _came_from(request)
        common = {
            "who": principal,
            "theme": theme if theme in THEMES else "",
            "token": self.app.access.form_token(session),
            "came_from": came_from,
            "again": here if request.method == "GET" else came_from or "/",
            "here": here,
            "path": request.url.path,
            "folder": self.app.node.folder.name,
            "now": self.app.clock.now(),
            "can": (lambda role: principal is not None and principal.role.covers(Role(role))),
            "has_users": self.app.access.has_users,
            "notice": self.app.access.read_notice(session, request.query_params.get("notice", "")),
            "api": "/api/v1",
        }
        return label_cells(self._templates.get_template(name).render({**common, **values}))

    def fragment(self, name: str, **values: Any) -> str:
        """The template *name* by itself."""
        return label_cells(self._templates.get_template(name).render(values))

    async def _answered(
        self, request: Request, role: Role, look: Look, template: str, *, is_form: bool = False
    ) -> Response:
        access = self.app.access
        known = await find_session(request, access)
        session = known or access.new_session()
        principal: Principal | None = None
        try:
            principal = await run_in_threadpool(require_role, request, access, role)
            form: Mapping[str, list[str]] = {}
            if is_form:
                form = await read_form(request)
                if known is None or not access.is_form_token(known, form.get("token", [""])[-1]):
                    raise InvalidFormTokenError
            call = PageRequest(self.app, request, principal, session, form)

            def look_and_render() -> Response:
                found = look(call)
                if isinstance(found, Response):
                    return found
                return HTMLResponse(self.render(found.get("template", template), request, principal, session, **found))

            response = await run_in_threadpool(look_and_render)
        except AuthenticationError:
            back = request.url.path if request.method == "GET" else "/"
            query = f"?{request.url.query}" if request.method == "GET" and request.url.query else ""
            response = RedirectResponse(f"/sign-in?back={quote(back + query)}", 303)
        except MillstreamError as error:
            status = status_of(error)
            html = self.render("error.html", request, principal, session, error=sentence(error), status=status)
            response = HTMLResponse(html, status)
        if known is None:
            set_session_cookie(response, access, session)
        return response


async def read_form(request: Request, limit: int = MOST_BODY) -> Mapping[str, list[str]]:
    """The fields of a form, bounded in size and number.

    Raises :class:`FormError`, :class:`MultipartError`, ``TooLargeError``.
    """
    data = await read_body(request, limit)
    content_type = request.headers.get("content-type", "")
    if content_type.lower().startswith("multipart/form-data"):
        return {name: list(texts) for name, texts in read_multipart(data, content_type).items()}
    try:
        return parse_qs(data.decode("utf-8"), keep_blank_values=True, max_num_fields=MOST_FIELDS)
    except (UnicodeDecodeError, ValueError) as error:
        raise FormError(f"cannot read the form: {error}") from error


def local_path(path: str) -> str:
    """*path*, where it leads to a page of this console; else the first page."""
    safe = path.startswith("/") and not path.startswith(("//", "/\\")) and "\\" not in path
    return path if safe and path.isprintable() else "/"


def sentence(error: Exception) -> str:
    """The text of *error* as a page says it: with a capital letter at its beginning."""
    text = str(error)
    return text[:1].upper() + text[1:]


def _came_from(request: Request) -> str:
    """The page of this console that led here; empty where none did, or where it is not known."""
    place = urlsplit(request.headers.get("referer", ""))
    if place.netloc != request.url.netloc:
        return ""
    return local_path(place.path + (f"?{place.query}" if place.query else ""))


def body_of(kind: type[Any], **values: Any) -> Any:
    """The checked parameters of a view. Raises :class:`FormError` that names the field."""
    try:
        return msgspec.convert(values, prepared(kind), strict=False)
    except msgspec.ValidationError as error:
        raise FormError(field_reason(error, kind)) from error


def parsed_json(text: str | None) -> Any:
    """*text* as a JSON object or array; None where it is neither."""
    try:
        value = msgspec.json.decode(text or "")
    except (msgspec.DecodeError, RecursionError):
        return None
    return value if isinstance(value, dict | list) else None


def read_time(text: str) -> int:
    """Microseconds of a time in UTC as people write it, or of a number of microseconds. Raises :class:`FormError`."""
    plain = text.strip().replace("T", " ").removesuffix("Z")
    if plain.isdecimal() and len(plain) > 8:
        return int(plain)
    for form in _TIMES:
        try:
            moment = dt.datetime.strptime(plain, form).replace(tzinfo=dt.UTC)
        except ValueError:
            continue
        return round((moment - dt.datetime(1970, 1, 1, tzinfo=dt.UTC)) / dt.timedelta(microseconds=1))
    raise FormError(f"invalid time {text[:40]!r}: write 2026-11-22 03:04:05 (UTC), or microseconds since 1970")
