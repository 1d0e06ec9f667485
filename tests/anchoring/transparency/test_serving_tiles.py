"""The published tiles over HTTP: types, caching, and 404 for whatever is not published."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from millstream.anchoring.errors import LedgerUnavailableError
from millstream.anchoring.transparency import FolderFiles, StoreFiles
from millstream.anchoring.transparency.tiles import TILE_MEDIA
from millstream.console.app import Console
from millstream.node import Node
from millstream.rest.app_context import AppContext
from millstream.rest.ledger_files import LedgerFiles
from millstream.settings import Settings
from millstream.stores import open_provider
from millstream.testing.ledgers import some_anchor
from millstream.testing.waiting import until


def node_with(folder: Path, *, tiles: bool) -> Node:
    settings = Settings(data=str(folder))
    return Node.open(
        msgspec.structs.replace(settings, anchoring=msgspec.structs.replace(settings.anchoring, tiles=tiles)),
        create=True,
    )


def get(node: Node, path: str) -> tuple[int, Mapping[str, str], bytes]:
    """Status, headers and body of what the console answers to somebody who did not sign in."""
    scope = {
        "type": "http", "http_version": "1.1", "method": "GET", "scheme": "http", "path": path,
        "raw_path": path.encode(), "query_string": b"", "root_path": "", "headers": [(b"host", b"127.0.0.1")],
        "client": ("127.0.0.1", 1), "server": ("127.0.0.1", 80),
    }  # fmt: skip
    received: list[Any] = []

    async def receive() -> Any:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message: Any) -> None:
        received.append(message)

    asyncio.run(Console(AppContext(node)).asgi_app(scope, receive, send))
    headers = {name.decode(): value.decode() for name, value in received[0]["headers"]}
    return received[0]["status"], headers, b"".join(message.get("body", b"") for message in received)


def test_checkpoint_and_tiles_are_served_with_their_types_and_caching(tmp_path: Path) -> None:
    with node_with(tmp_path, tiles=True) as node:
        for number in range(3):
            node.anchoring.ledger.append(some_anchor(number))
        signed = node.ledgers.tree("anchors").checkpoint()
        status, headers, body = get(node, "/ledger/anchors/checkpoint")
        assert (status, body) == (200, signed.data)
        assert (headers["content-type"], headers["cache-control"]) == ("text/plain; charset=utf-8", "no-cache")
        for path in ("tile/0/000.p/3", "tile/0/000.p/1", "tile/entries/000.p/2"):
            status, headers, body = get(node, f"/ledger/anchors/{path}")
            assert (status, body) == (200, (tmp_path / "ledger-tiles" / "anchors" / path).read_bytes())
            assert headers["content-type"] == "application/octet-stream"
            assert headers["cache-control"] == "public, max-age=31536000, immutable"


@pytest.mark.parametrize(
    "path",
    [
        "anchors/tile/0/000",
        "anchors/tile/0/000.p/0",
        "anchors/tile/0/000.p/256",
        "anchors/tile/0/0",
        "anchors/tile/64/000",
        "anchors/tile/0/x000",
        "anchors/../../millstream.toml",
        "anchors/tile/../checkpoint",
        "registry/checkpoint",
        "other/checkpoint",
        "anchors/",
    ],
)
def test_what_is_not_published_is_not_found(tmp_path: Path, path: str) -> None:
    with node_with(tmp_path, tiles=True) as node:
        node.anchoring.ledger.append(some_anchor(1))
        assert get(node, f"/ledger/{path}")[0] == 404


def test_nothing_is_served_until_the_setting_says_so(tmp_path: Path) -> None:
    with node_with(tmp_path, tiles=True) as node:
        node.anchoring.ledger.append(some_anchor(1))
        assert get(node, "/ledger/anchors/checkpoint")[0] == 200
    with node_with(tmp_path, tiles=False) as node:
        status, _, body = get(node, "/ledger/anchors/checkpoint")
        assert status == 404
        assert b"anchoring.tiles" in body


def test_a_folder_that_cannot_be_read_is_not_named_to_whoever_asks(tmp_path: Path) -> None:
    with node_with(tmp_path, tiles=True) as node:
        node.anchoring.ledger.append(some_anchor(0))
        node.ledgers.tree("anchors").checkpoint()
        published = tmp_path / "ledger-tiles" / "anchors" / "checkpoint"
        published.unlink()
        published.mkdir()
        status, _, body = get(node, "/ledger/anchors/checkpoint")
        assert status == 503
        assert str(tmp_path).encode() not in body
        for path in ("tile/0/x000/001", f"tile/0/{'x001/' * 7}001"):
            assert get(node, f"/ledger/anchors/{path}")[0] == 404


def test_anonymous_reads_leave_threads_to_others() -> None:
    held, running, most = threading.Event(), list[str](), list[int]()

    class SlowFiles:
        def read(self, path: str) -> bytes:
            running.append(path)
            most.append(len(running))
            held.wait(60)
            running.remove(path)
            return b"tile"

    node: Any = SimpleNamespace(ledgers=SimpleNamespace(published=lambda _name: SlowFiles()))
    answer = LedgerFiles(node).route.endpoint

    async def ask() -> list[int]:
        paths = [{"ledger": "anchors", "path": f"tile/0/{number:03}"} for number in range(30)]
        asked = [asyncio.ensure_future(answer(SimpleNamespace(path_params=each))) for each in paths]
        await asyncio.to_thread(until, lambda: len(running) == 8, "eight files are read")
        await asyncio.sleep(0)
        held.set()
        return [response.status_code for response in await asyncio.gather(*asked)]

    assert asyncio.run(ask()) == [200] * 30 and max(most) == 8


def test_a_file_of_a_store_is_read_with_one_request(monkeypatch: pytest.MonkeyPatch) -> None:
    files = StoreFiles(open_provider("memory://tiles"), "anchors")
    assert files.read("checkpoint") is None
    files.put("checkpoint", b"signed", TILE_MEDIA)
    monkeypatch.setattr(files._store, "has_space", lambda _space: pytest.fail("asked for the space"))
    assert (files.read("checkpoint"), files.read("tile/0/000")) == (b"signed", None)


def test_nothing_but_plain_files_below_the_folder_of_the_tiles_is_read_or_served(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.mkdir()
    (secret / "000").write_bytes(b"another file")
    with node_with(tmp_path / "node", tiles=True) as node:
        node.anchoring.ledger.append(some_anchor(0))
        node.ledgers.tree("anchors").checkpoint()
        tiles = tmp_path / "node" / "ledger-tiles" / "anchors" / "tile"
        (tiles / "0" / "000").symlink_to(secret / "000")
        os.mkfifo(tiles / "0" / "001")
        (tiles / "1").symlink_to(secret)
        for path in ("tile/0/000", "tile/0/001", "tile/1/000"):
            status, _, body = get(node, f"/ledger/anchors/{path}")
            assert (status, str(tmp_path).encode() in body) == (503, False)


def test_no_tile_is_put_or_removed_through_a_symbolic_link(tmp_path: Path) -> None:
    other = tmp_path / "other"
    (other / "000.p").mkdir(parents=True)
    files = FolderFiles(tmp_path / "tiles", "anchors", create=True)
    files.put("tile/entries/000", b"entries", TILE_MEDIA)
    (tmp_path / "tiles" / "anchors" / "tile" / "0").symlink_to(other)
    with pytest.raises(LedgerUnavailableError, match="symbolic link or a file; replace it by a folder"):
        files.put("tile/0/000", b"tile", TILE_MEDIA)
    with pytest.raises(LedgerUnavailableError, match="symbolic link"):
        files.delete_below("tile/0/000.p")
    assert [path.name for path in other.iterdir()] == ["000.p"]
