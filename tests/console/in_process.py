"""The pages and the interface of a node, asked within this process: no server, no socket."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from millstream.console.app import Console
from millstream.node import Node
from millstream.rest.app_context import AppContext
from millstream.rest.broker_link import BrokerLink
from millstream.settings import load_settings


class AskedInProcess:
    """The console of one node, perhaps with a *broker*. Nothing watches it: every question looks anew."""

    def __init__(self, node: Node, broker: BrokerLink | None = None) -> None:
        self.node = node
        self._asgi_app = Console(AppContext(node, broker=broker)).asgi_app

    def ask(self, method: str, target: str, body: Any = None) -> tuple[int, str]:
        """The status and the text of one answer; *body* is sent as JSON."""
        sent = b"" if body is None else json.dumps(body).encode()
        return asyncio.run(self._answer(method, urlsplit(target), sent))

    def page(self, target: str) -> str:
        """A page that is there, its white space narrowed."""
        status, text = self.ask("GET", target)
        assert status == 200, (target, status, text)
        return " ".join(text.split())

    def api(self, target: str, body: Any = None) -> Any:
        """What the interface for programs answers: to *body* where there is one."""
        status, text = self.ask("GET" if body is None else "POST", f"/api/v1{target}", body)
        assert status == 200, (target, status, text)
        return json.loads(text)

    async def _answer(self, method: str, target: Any, sent: bytes) -> tuple[int, str]:
        scope = {
            "type": "http", "http_version": "1.1", "method": method, "scheme": "http", "path": target.path,
            "raw_path": target.path.encode(), "query_string": target.query.encode(), "root_path": "",
            "headers": [(b"host", b"127.0.0.1"), (b"content-type", b"application/json")],
            "client": ("127.0.0.1", 1), "server": ("127.0.0.1", 80),
        }  # fmt: skip
        received: list[Any] = []

        async def receive() -> Any:
            return {"type": "http.request", "body": sent, "more_body": False}

        async def send(message: Any) -> None:
            received.append(message)

        await self._asgi_app(scope, receive, send)
        text = b"".join(message.get("body", b"") for message in received).decode()
        return received[0]["status"], text


@contextlib.contextmanager
def asked_in_process(folder: Path) -> Iterator[AskedInProcess]:
    """The console of the node in *folder*."""
    settings, _ = load_settings({"data": str(folder)})
    with Node.open(settings) as node:
        yield AskedInProcess(node)
