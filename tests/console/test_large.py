"""Pages over very much: what one answer costs does not grow with what lies behind it, and memory is held.

At the long size over a million messages, a hundred thousand dead letters and ten thousand spaces, where every page
also has to answer within 300 ms at the median; figures are printed (``pytest -s``).
"""

from __future__ import annotations

import asyncio
import statistics
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote

import pytest
import sqlalchemy as sa
from crowd import NOW, WHOLE, Crowd, furnish_crowd
from world import Served, serving

from millstream.console.app import Console
from millstream.node import Node
from millstream.rest.app_context import AppContext
from millstream.settings import load_settings
from suite.sizes import sized

QUEUE = "/queues/duplication-high"
PATHS = (
    "/", "/logs", "/logs/weather", "/logs/weather/1000", "/batches", "/anchors", "/policies", "/policies/local",
    "/integrity", "/integrity?text=space-00", "/integrity/findings", "/integrity/space?store=second&space=space-00003",
    "/integrity/item?space=space-00003&content_id=item-1.bin", "/queues", QUEUE, f"{QUEUE}/5", "/workers", "/system",
    f"/api/v1{QUEUE}/causes", f"/api/v1{QUEUE}/dead?limit=1000", "/api/v1/integrity/spaces", "/metrics",
)  # fmt: skip
MEDIAN_SECONDS = 0.3
MEMORY_BYTES = 48 << 20
ROUNDS = 9


def paths(crowd: Crowd) -> list[str]:
    """Everything that is looked at, also from the middle of what there is."""
    middle = crowd.messages // 2
    cause = quote("the provider answered in the manner a to request … of …")
    return [
        *PATHS, f"/logs/weather?first={middle}", f"/logs/weather?time={NOW + middle * 1000}",
        f"{QUEUE}?after={crowd.dead_letters // 2}", f"{QUEUE}?cause={cause}",
    ]  # fmt: skip


pytestmark = pytest.mark.long


@pytest.fixture(scope="module")
def crowds(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, tuple[Crowd, Path]]:
    """A node, and one with ten times as much on it."""
    shares = sized(ci=(100, 10), long=(10, 1))
    folder = tmp_path_factory.mktemp("crowds")
    made = {name: WHOLE.part(share) for name, share in zip(("less", "more"), shares, strict=True)}
    return {name: (crowd, furnish_crowd(folder / name, crowd)) for name, crowd in made.items()}


def test_a_page_does_no_more_work_over_ten_times_as_much(crowds: Mapping[str, tuple[Crowd, Path]]) -> None:
    less, more = (work_of(*crowds[name]) for name in ("less", "more"))
    del less["/policies/local"], more["/policies/local"]  # it shows a policy, however long that is
    for path, small, large in zip(less, less.values(), more.values(), strict=True):
        print(f"{path[:60]:60} {large[0]:9,} calls, {large[1]:6,} tens of steps of SQLite (of less: {small})")
        assert large[0] <= 2.5 * small[0] + 5_000, path
        assert large[1] <= 2 * small[1] + 100, path


def test_pages_answer_and_memory_is_held(crowds: Mapping[str, tuple[Crowd, Path]], size: str) -> None:
    crowd, folder = crowds["more"]
    with serving(folder) as served:
        asked = paths(crowd)
        for path in asked:
            assert served.ask("GET", path)[0] == 200, path
        before = memory(served)
        medians = {path: median(served, path) for path in asked}
        grown = memory(served) - before
    for path, seconds in sorted(medians.items(), key=lambda pair: -pair[1]):
        print(f"{path[:60]:60} {seconds * 1e3:8.1f} ms")
    print(f"memory {before / 1e6:.0f} MB, grown by {grown / 1e6:.1f} MB over {len(asked) * ROUNDS} answers")
    assert grown < MEMORY_BYTES
    if size == "long":
        assert max(medians.values()) < MEDIAN_SECONDS


_ANSWERS = 4


def work_of(crowd: Crowd, folder: Path) -> dict[str, tuple[int, int]]:
    """By path: calls of functions, and tens of steps of SQLite, of the answer that took least: one of the others may
    count totals for all pages."""
    settings, _ = load_settings({"data": str(folder)})
    with Node.open(settings) as node:
        console = Console(AppContext(node))
        sa.event.listen(node.databases.own, "connect", _count_steps)
        node.databases.own.dispose()
        for look, _pause in console.app.poller.looks.values():  # a page that comes before them looks itself
            look()
        console.app.poller.start()
        try:
            return {path: min(_work(console.asgi_app, path) for _ in range(_ANSWERS)) for path in paths(crowd)}
        finally:
            console.app.poller.stop()


class _Counted:
    calls = steps = 0

    def call(self, _frame: Any, event: str, _argument: Any) -> None:
        self.calls += event in ("call", "c_call")


_counted = _Counted()


def _count_steps(connection: Any, _record: Any) -> None:
    def step() -> int:
        if sys.getprofile() is not None:  # the node is watched from other threads, whose work is not that of a page
            _counted.steps += 1
        return 0

    connection.set_progress_handler(step, 10)


def _work(app: Any, path: str) -> tuple[int, int]:
    """Ask in threads that are made for it, so that their work is counted and that of no others."""
    statuses: list[int] = []
    plain, _, query = path.partition("?")
    scope = {
        "type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "method": "GET", "scheme": "http",
        "path": unquote(plain), "raw_path": plain.encode(), "query_string": query.encode(), "root_path": "",
        "headers": [(b"host", b"localhost")], "client": ("127.0.0.1", 1), "server": ("127.0.0.1", 80),
    }  # fmt: skip

    async def receive() -> Mapping[str, Any]:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message: Mapping[str, Any]) -> None:
        if message["type"] == "http.response.start":
            statuses.append(message["status"])

    async def ask() -> None:
        await app(scope, receive, send)

    _counted.calls = _counted.steps = 0
    threading.setprofile(_counted.call)
    try:
        thread = threading.Thread(target=lambda: asyncio.run(ask()))
        thread.start()
        thread.join()
    finally:
        threading.setprofile(None)  # type: ignore[arg-type]
    assert statuses == [200], path
    return _counted.calls, _counted.steps


def median(served: Served, path: str) -> float:
    """Seconds from the question to the whole answer."""

    def each() -> Iterator[float]:
        for _ in range(ROUNDS):
            began = time.perf_counter()
            assert served.ask("GET", path)[0] == 200
            yield time.perf_counter() - began

    return statistics.median(each())


def memory(served: Served) -> int:
    """Resident bytes of the server's process."""
    status = Path(f"/proc/{served.process.pid}/status").read_text("ascii")
    line = next(line for line in status.splitlines() if line.startswith("VmRSS"))
    return int(line.split()[1]) * 1024
