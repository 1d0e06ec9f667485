"""The pages and the interface of a node, asked within this process: no server, no socket."""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlencode, urlsplit

from millstream.console.app import Console
from millstream.node import Node
from millstream.rest.app_context import AppContext
from millstream.rest.authentication import COOKIE
from millstream.rest.broker_link import BrokerLink
from millstream.settings import load_settings

_LABEL = re.compile(r' data-label="[^"]*"')


class AskedInProcess:
    """The console of one node, perhaps with a *broker*. Nothing watches it: every question looks anew.

    ``headers`` are those of the last answer.
    """

    def __init__(self, node: Node, broker: BrokerLink | None = None) -> None:
        self.node = node
        self.app = AppContext(node, broker=broker)
        self._asgi_app = Console(self.app).asgi_app
        self._session = self.app.access.new_session()
        self.headers: Mapping[bytes, bytes] = {}

    def ask(self, method: str, target: str, body: Any = None, **headers: str) -> tuple[int, str]:
        """The status and the text of one answer; *body* is sent as JSON."""
        sent = b"" if body is None else json.dumps(body).encode()
        return asyncio.run(self._answer(method, target, sent, {"content-type": "application/json", **headers}))[:2]

    def page(self, target: str) -> str:
        """A page that is there, its white space narrowed, without the names of columns in the cells of tables."""
        status, text, _ = asyncio.run(self._answer("GET", target, b"", self._cookie))
        assert status == 200, (target, status, text)
        return _LABEL.sub("", " ".join(text.split()))

    def form(self, target: str, **fields: str) -> str:
        """The page that a form leads to, filled in with *fields*: an answer of its own, or the next one."""
        sent = urlencode({"token": self.app.access.form_token(self._session), **fields}).encode()
        more = {**self._cookie, "content-type": "application/x-www-form-urlencoded"}
        status, text, location = asyncio.run(self._answer("POST", target, sent, more))
        if status == 303:
            return self.page(location.partition("#")[0])
        return " ".join(text.split())

    def send_files(self, target: str, fields: Mapping[str, str], files: Mapping[str, bytes]) -> tuple[int, str]:
        """Status and text of the answer to a form with *fields* and *files*, sent as a browser does."""
        named = {"token": self.app.access.form_token(self._session), **fields}
        parts = [f'name="{name}"\r\n\r\n{text}'.encode() for name, text in named.items()]
        for name, data in files.items():
            head = f'name="{name}"; filename="a file.json"\r\nContent-Type: application/json\r\n\r\n'
            parts.append(head.encode() + data)
        sent = b"".join(b"--mark\r\nContent-Disposition: form-data; " + part + b"\r\n" for part in parts)
        more = {**self._cookie, "content-type": "multipart/form-data; boundary=mark"}
        return asyncio.run(self._answer("POST", target, sent + b"--mark--\r\n", more))[:2]

    def api(self, target: str, body: Any = None) -> Any:
        """What the interface for programs answers: to *body* where there is one."""
        status, text = self.ask("GET" if body is None else "POST", f"/api/v1{target}", body)
        assert status == 200, (target, status, text)
        return json.loads(text)

    @property
    def _cookie(self) -> Mapping[str, str]:
        return {"cookie": f"{COOKIE}={self.app.access.cookie(self._session)}"}

    async def _answer(self, method: str, address: str, sent: bytes, more: Mapping[str, str]) -> tuple[int, str, str]:
        """Status, text and the header ``Location`` of one answer."""
        target = urlsplit(address)
        scope = {
            "type": "http", "http_version": "1.1", "method": method, "scheme": "http", "path": target.path,
            "raw_path": target.path.encode(), "query_string": target.query.encode(), "root_path": "",
            "headers": [(b"host", b"127.0.0.1"), *((n.encode(), v.encode()) for n, v in more.items())],
            "client": ("127.0.0.1", 1), "server": ("127.0.0.1", 80),
        }  # fmt: skip
        received: list[Any] = []

        async def receive() -> Any:
            return {"type": "http.request", "body": sent, "more_body": False}

        async def send(message: Any) -> None:
            received.append(message)

        await self._asgi_app(scope, receive, send)
        text = b"".join(message.get("body", b"") for message in received).decode()
        headers = self.headers = dict(received[0]["headers"])
        return received[0]["status"], text, headers.get(b"location", b"").decode()


@contextlib.contextmanager
def asked_in_process(folder: Path) -> Iterator[AskedInProcess]:
    """The console of the node in *folder*."""
    settings, _ = load_settings({"data": str(folder)})
    with Node.open(settings) as node:
        yield AskedInProcess(node)
