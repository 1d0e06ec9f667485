"""Sessions of pages: looked up beside the event loop, and open streams end with them."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path

import pytest
import sqlalchemy as sa
from in_process import AskedInProcess
from starlette.requests import Request

from millstream.console.app import Console
from millstream.core.clock import VirtualClock
from millstream.core.passwords import hash_password
from millstream.node import Node
from millstream.rest import sign_ins
from millstream.rest.app_context import AppContext
from millstream.rest.authentication import COOKIE
from millstream.settings import load_settings


def test_no_page_asks_the_database_for_sessions_on_the_event_loop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sign_ins, "_REFRESH_SECONDS", 0.0)
    threads = list[threading.Thread]()
    with Node.open(load_settings({"data": str(tmp_path)})[0], create=True) as node:
        asked = AskedInProcess(node)

        @sa.event.listens_for(node.databases.own, "before_cursor_execute")
        def watch(_connection: object, _cursor: object, statement: str, *_more: object) -> None:
            if "console_signed_out" in statement:
                threads.append(threading.current_thread())

        cookie = f"{COOKIE}={asked.app.access.cookie(asked.app.access.new_session())}"
        for method, target in (
            ("GET", "/"), ("GET", "/no-such-page"), ("GET", "/sign-in"), ("POST", "/sign-in"), ("POST", "/sign-out"),
        ):  # fmt: skip
            before = len(threads)
            asked.ask(method, target, cookie=cookie)
            assert len(threads) > before, target
    assert threading.current_thread() not in threads


@pytest.mark.parametrize("ending", ["sign out", "expiry"])
def test_a_stream_ends_with_the_session_that_opened_it(tmp_path: Path, ending: str) -> None:
    users = {"vera": {"password": hash_password("secret of vera"), "role": "viewer"}}
    settings, _ = load_settings({"data": str(tmp_path), "console": {"users": users, "session_hours": 1}})
    with Node.open(settings, create=True) as node:
        app = AppContext(node)
        session = app.access.sign_in("vera", "secret of vera", "192.0.2.1")
        headers = [(b"cookie", f"{COOKIE}={app.access.cookie(session)}".encode())]
        scope = {"type": "http", "method": "GET", "path": "/events", "query_string": b"", "headers": headers}

        async def read() -> None:
            response = await Console(app)._events.serve(Request(scope))
            assert response.status_code == 200
            async with asyncio.timeout(20):
                parts = response.body_iterator
                assert (await anext(parts)).startswith(b"retry")
                if ending == "sign out":
                    await asyncio.to_thread(app.access.sign_out, session, "192.0.2.1")
                else:
                    app.access._clock = VirtualClock(session.expires)
                assert [part async for part in parts] == []

        asyncio.run(read())
