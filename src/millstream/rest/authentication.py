"""From a request to its caller: the cookie of a session, or the header ``Authorization`` of a program."""

from __future__ import annotations

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response

from millstream.rest.access_control import (
    AccessControl,
    AuthenticationError,
    InvalidFormTokenError,
    PermissionDeniedError,
    Session,
)
from millstream.rest.principal import Principal
from millstream.settings.console import Role

COOKIE = "millstream_visit"


def session_of(request: Request, access: AccessControl) -> Session | None:
    """The session that the request belongs to. May wait for the database: call it in a thread."""
    cookie = request.cookies.get(COOKIE)
    return access.read_cookie(cookie) if cookie else None


async def find_session(request: Request, access: AccessControl) -> Session | None:
    """:func:`session_of`, in a thread: a database that does not answer holds up neither the broker nor the registry,
    which share the event loop."""
    return await run_in_threadpool(session_of, request, access)


def set_session_cookie(response: Response, access: AccessControl, session: Session) -> None:
    """Let the browser bring *session* back with every request, and show it to no script and no other site."""
    seconds = round(access.settings.session_hours * 3600)
    response.set_cookie(
        COOKIE, access.cookie(session), max_age=seconds, httponly=True, samesite="strict", secure=access.settings.secure
    )


def require_role(request: Request, access: AccessControl, role: Role) -> Principal:
    """The principal of the request. Blocks for a moment where a password is checked: call it in a thread.

    Raises :class:`AuthenticationError` without a caller, :class:`PermissionDeniedError` for a role that is not
    enough, and :class:`InvalidFormTokenError` for a change that another site's page asks for.
    """
    header = request.headers.get("authorization", "")
    if access.has_users and header.lower().startswith("basic "):
        principal: Principal | None = access.basic(header, address_of(request))
    elif access.has_users and header.lower().startswith("bearer ") and access.is_local(header):
        principal = Principal("this machine", Role.VIEWER)
    else:
        principal = access.principal(session_of(request, access))
    if principal is None:
        raise AuthenticationError
    if not principal.role.covers(role):
        raise PermissionDeniedError(
            f"the request requires the role {role.value}, but the user {principal.name} has the role "
            f"{principal.role.value}: sign in as a user with the role {role.value}"
        )
    if request.method not in ("GET", "HEAD"):
        _refuse_other_sites(request)
    return principal


def address_of(request: Request) -> str:
    """The address that the request came from."""
    return request.client.host if request.client else ""


def _refuse_other_sites(request: Request) -> None:
    """Browsers say which site a request comes from; programs do not."""
    site = request.headers.get("sec-fetch-site", "same-origin")
    origin = request.headers.get("origin")
    host = request.headers.get("host", "")
    if site not in ("same-origin", "none") or (origin is not None and origin.partition("://")[2] != host):
        raise InvalidFormTokenError("the form was sent from a page of another site: open the page of this node again")
