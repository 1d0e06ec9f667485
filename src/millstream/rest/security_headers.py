"""The checks of every request: a known name of the host, a bounded size, and headers that keep browsers careful."""

from __future__ import annotations

from collections.abc import Collection

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from millstream.rest.bodies import answer

POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "font-src 'self'; form-action 'self'; frame-ancestors 'none'; base-uri 'none'"
)

HEADERS = {
    "content-security-policy": POLICY,
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "permissions-policy": "camera=(), geolocation=(), microphone=(), payment=(), usb=()",
}
LONGEST_URL = 8_192


class SecurityHeadersMiddleware:
    """Refuses requests for names that are none of *hosts* (all are good where it is empty), and sets headers.

    A page of another site that makes the browser believe its name is this machine's is refused by that.
    """

    def __init__(self, app: ASGIApp, hosts: Collection[str], *, secure: bool = False) -> None:
        self._app = app
        self._hosts = frozenset(host.lower() for host in hosts)
        self._headers = HEADERS | ({"strict-transport-security": "max-age=31536000"} if secure else {})

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in self._headers.items():
                    headers.setdefault(name, value)
                headers.setdefault("cache-control", "no-store")
            await send(message)

        refusal = self._refusal(scope)
        await (refusal or self._app)(scope, receive, send_with_headers)

    def _refusal(self, scope: Scope) -> ASGIApp | None:
        if len(scope.get("raw_path") or b"") + len(scope["query_string"]) > LONGEST_URL:
            return answer({"code": "too_long", "message": f"an address has at most {LONGEST_URL:,} bytes"}, 414)
        host = _without_port(Headers(scope=scope).get("host", ""))
        if self._hosts and host not in self._hosts:
            text = f"nothing is served under the name {host[:100]!r}: name it in console.hosts of the settings"
            return answer({"code": "unknown_host", "message": text}, 421)
        return None


def _without_port(host: str) -> str:
    name, colon, port = host.rpartition(":")
    return (name if colon and port.isdecimal() else host).lower()
