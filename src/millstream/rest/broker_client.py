"""Calls of a broker's administration over the HTTP interface of the node in which the broker runs."""

from __future__ import annotations

import base64
import contextlib
import http.client
import ssl
from typing import Any, TypeVar
from urllib.parse import urlencode, urlsplit

import msgspec

from millstream.core.errors import InputError
from millstream.core.secrets import safe_url
from millstream.messaging.broker.admin import AdminCall, AdminCallError
from millstream.messaging.errors import UnreachableError
from millstream.rest.access_control import is_loopback
from millstream.rest.endpoint import PREFIX

Request = TypeVar("Request")
Result = TypeVar("Result")

_SECONDS = 30.0
_MOST_BYTES = 64 << 20
_EXIT_CODES = {400: 2, 404: 3, 503: 4}


class BrokerClient(msgspec.Struct, frozen=True, kw_only=True):
    """The node at ``url``. ``user`` and ``password`` sign in; ``ca`` (PEM) verifies its certificate in place of the
    system's certificates."""

    url: str
    user: str = ""
    password: str = ""
    ca: bytes | None = None

    def __post_init__(self) -> None:
        parts = urlsplit(self.url)
        if parts.scheme not in ("http", "https") or not parts.hostname or parts.query or parts.username:
            found = safe_url(self.url)
            if parts.username:
                raise InputError(
                    f"--url: {found!r} contains a user name: remove the name, and use --user and --password-file"
                )
            raise InputError(
                f"--url: invalid URL {found!r}: expected http://HOST:PORT or https://HOST, without a query"
            )
        if self.user and parts.scheme == "http" and not is_loopback(parts.hostname):
            raise InputError(f"--url {self.url!r}: passwords are sent to other hosts only over https: use https://")

    def __call__(self, call: AdminCall[Request, Result], request: Request) -> Result:
        """The result of *call* for *request*. Raises :class:`UnreachableError`, :class:`AdminCallError`."""
        parameters = call.parameters(request)
        path = urlsplit(self.url).path.rstrip("/") + PREFIX + call.path
        body = None
        if call.method == "GET":
            path += f"?{urlencode(parameters)}"
        else:
            body = msgspec.json.encode(parameters)
        status, answer = self._send(call.method, path, body)
        if status == 200:
            with contextlib.suppress(msgspec.ValidationError):
                return call.rest_result(answer)
        if status == 401 and not self.user:
            error = AdminCallError(f"{self.url} requires a user: give --user and --password-file")
        elif isinstance(answer, dict) and "message" in answer:
            error = AdminCallError(f"{answer['message']} ({self.url} answered {status})")
        else:
            error = AdminCallError(
                f"{self.url} answered with status {status} and is not a REST API of this release: check the "
                "URL and the version of the node"
            )
        error.exit_code = _EXIT_CODES.get(status, 1)  # type: ignore[misc]
        raise error

    def _send(self, method: str, path: str, body: bytes | None) -> tuple[int, Any]:
        headers = {"Accept": "application/json"} | ({} if body is None else {"Content-Type": "application/json"})
        if self.user:
            secret = base64.b64encode(f"{self.user}:{self.password}".encode()).decode()
            headers["Authorization"] = f"Basic {secret}"
        try:
            with contextlib.closing(self._connection()) as connection:
                connection.request(method, path, body, headers)
                response = connection.getresponse()
                data = response.read(_MOST_BYTES)
        except (OSError, http.client.HTTPException) as error:
            text = f"cannot call the node at {self.url}: {error}. Check the URL, and that `millstream serve` runs there"
            raise UnreachableError(text) from error
        try:
            return response.status, msgspec.json.decode(data)
        except msgspec.DecodeError:
            return response.status, None

    def _connection(self) -> http.client.HTTPConnection:
        parts = urlsplit(self.url)
        if parts.scheme == "http":
            return http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=_SECONDS)
        context = ssl.create_default_context(cadata=None if self.ca is None else self.ca.decode("ascii"))
        return http.client.HTTPSConnection(parts.hostname or "", parts.port, timeout=_SECONDS, context=context)
