"""The least that taking a signed operation over HTTP costs: uvicorn without a framework, libsecp256k1 and SQLite.

The JSON is parsed, the signature is verified, and the request is durable before it is answered, in one transaction
with those that arrive meanwhile. Nothing else is checked: no hashes, sizes, patches or keys that were used before;
nothing is cut, anchored or observed. ``python -m millstream_peers.registry_floor DATABASE``, run in ``benchmarks/``,
serves ``POST`` on any path.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import sqlite3
import sys
from typing import Any

import coincurve
import msgspec
import uvicorn
from coincurve.ecdsa import cdata_to_der, deserialize_compact

_decode = msgspec.json.Decoder().decode
_JSON = (b"content-type", b"application/json")


def _bytes(text: str) -> bytes:
    return base64.urlsafe_b64decode(text + "==")


def verify(request: dict[str, Any]) -> None:
    """Raise :class:`ValueError` unless *request*, an update, is signed by the key that it reveals."""
    message, _, signature = request["signedData"].rpartition(".")
    key = _decode(_bytes(message.partition(".")[2]))["updateKey"]
    public = coincurve.PublicKey(b"\x04" + _bytes(key["x"]) + _bytes(key["y"]))
    if not public.verify(cdata_to_der(deserialize_compact(_bytes(signature))), message.encode()):
        raise ValueError("the signature does not match")


class Floor:
    """The application: one table in the file *path*."""

    def __init__(self, path: str) -> None:
        self._database = sqlite3.connect(path, check_same_thread=False, isolation_level=None)
        self._database.executescript(
            "PRAGMA journal_mode = WAL; PRAGMA synchronous = FULL; "
            "CREATE TABLE operations (id BLOB PRIMARY KEY, suffix TEXT, request BLOB) WITHOUT ROWID"
        )
        self._waiting: list[tuple[tuple[bytes, str, bytes], asyncio.Future[None]]] = []
        self._task: asyncio.Task[None] | None = None

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Take the operation in the body."""
        assert scope["type"] == "http", "nothing else is served"
        body, more = b"", True
        while more:
            message = await receive()
            body += message.get("body", b"")
            more = message.get("more_body", False)
        request = _decode(body)
        if request["type"] != "create":
            verify(request)
        name = hashlib.sha256(body).digest()
        future = asyncio.get_running_loop().create_future()
        self._waiting.append(((name, request.get("didSuffix", ""), body), future))
        if self._task is None:
            self._task = asyncio.create_task(self._drain())
        await future
        answer = msgspec.json.encode({"id": name.hex(), "state": "accepted"})
        headers = [_JSON, (b"content-length", str(len(answer)).encode("ascii"))]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": answer})

    async def _drain(self) -> None:
        while self._waiting:
            group, self._waiting = self._waiting, []
            await asyncio.to_thread(self._commit, [row for row, _ in group])
            for _, future in group:
                future.set_result(None)
        self._task = None

    def _commit(self, rows: list[tuple[bytes, str, bytes]]) -> None:
        self._database.execute("BEGIN IMMEDIATE")
        self._database.executemany("INSERT INTO operations VALUES (?, ?, ?)", rows)
        self._database.execute("COMMIT")


class _Server(uvicorn.Server):
    async def startup(self, sockets: Any = None) -> None:
        await super().startup(sockets)
        print(f"serving http://127.0.0.1:{self.servers[0].sockets[0].getsockname()[1]}", flush=True)


if __name__ == "__main__":
    options: dict[str, Any] = {"ws": "none", "log_config": None, "access_log": False, "lifespan": "off", "port": 0}
    _Server(uvicorn.Config(Floor(sys.argv[1]), http="httptools", loop="uvloop", **options)).run()
