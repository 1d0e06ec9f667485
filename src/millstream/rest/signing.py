"""From a request to somebody: the cookie of a visit, or the header ``Authorization`` of a program."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

from millstream.console_settings import Role
from millstream.rest.access import Access, AccessError, ForbiddenError, ForgedError, Visit
from millstream.rest.who import Who

COOKIE = "millstream_visit"


def visit_of(request: Request, access: Access) -> Visit | None:
    """The visit that the request is part of."""
    cookie = request.cookies.get(COOKIE)
    return access.read_cookie(cookie) if cookie else None


def set_visit(response: Response, access: Access, visit: Visit) -> None:
    """Let the browser bring *visit* back with every request, and show it to no script and no other site."""
    seconds = round(access.settings.session_hours * 3600)
    response.set_cookie(
        COOKIE, access.cookie(visit), max_age=seconds, httponly=True, samesite="strict", secure=access.settings.secure
    )


def require(request: Request, access: Access, role: Role) -> Who:
    """Who sends the request. Blocks for a moment where a password is checked: call it in a thread.

    Raises :class:`AccessError` for nobody, :class:`ForbiddenError` for whose role is not enough, and
    :class:`ForgedError` for a change that another site's page asks for.
    """
    header = request.headers.get("authorization", "")
    if access.has_users and header.lower().startswith("basic "):
        who: Who | None = access.basic(header, address_of(request))
    else:
        who = access.who(visit_of(request, access))
    if who is None:
        raise AccessError
    if not who.role.covers(role):
        raise ForbiddenError(f"this takes the role {role.value}; {who.name} is {who.role.value}")
    if request.method not in ("GET", "HEAD"):
        _refuse_other_sites(request)
    return who


def address_of(request: Request) -> str:
    """The address that the request came from."""
    return request.client.host if request.client else ""


def _refuse_other_sites(request: Request) -> None:
    """Browsers say which site a request comes from; programs do not."""
    site = request.headers.get("sec-fetch-site", "same-origin")
    origin = request.headers.get("origin")
    host = request.headers.get("host", "")
    if site not in ("same-origin", "none") or (origin is not None and origin.partition("://")[2] != host):
        raise ForgedError("the request comes from a page of another site")
