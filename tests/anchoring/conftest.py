"""The parts of anchoring in memory or in a folder, wired as the node wires them."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from millstream.anchoring import (
    AnchorIndex,
    BatchJournal,
    BatchWriter,
    CutLimits,
    LocalCas,
    MemoryLedger,
    Observer,
    ReplayReport,
    prove,
    replay,
)
from millstream.core.clock import VirtualClock
from millstream.testing.cas import FaultyCas
from support.signed_ledger import MemorySignedLedger


@dataclass
class AnchoringParts:
    folder: Path
    engine: sa.Engine
    cas: LocalCas
    faults: FaultyCas
    ledger: MemoryLedger
    index: AnchorIndex
    journal: BatchJournal
    observer: Observer
    writer: BatchWriter

    def prove(self, message_id: int, log: str = "weather") -> bytes:
        return prove(log, message_id, index=self.index, cas=self.cas, ledger=self.ledger, journal=self.journal)

    def prove_signed(self, message_id: int, signed: MemorySignedLedger, log: str = "weather") -> bytes:
        """The proof with the signed tree of the ledger (version 2)."""
        members = {"index": self.index, "cas": self.cas, "ledger": self.ledger, "journal": self.journal}
        return prove(log, message_id, **members, prove_entry=signed.prove_entry)

    def replay(self) -> ReplayReport:
        return replay(self.cas, self.ledger, self.index)

    def anchor_strings(self) -> list[str]:
        return [entry.anchor_string for entry in self.ledger.entries()]


MakeParts = Callable[..., AnchoringParts]


class Web:
    """A web server on loopback; ``answers`` has what is sent for a path: bytes, a status, or a function of the request.

    ``asked`` has the paths that were asked for, with their queries, in order.
    """

    def __init__(self) -> None:
        self.answers: dict[str, bytes | int | Callable[[BaseHTTPRequestHandler], None]] = {}
        self.asked: list[str] = []
        self.fallback: Callable[[str], bytes | int] = lambda _: 404
        self.ended = threading.Event()
        web = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                web.asked.append(self.path)
                answer = web.answers.get(self.path.partition("?")[0])
                if answer is None:
                    answer = web.fallback(self.path)
                if callable(answer):
                    answer(self)
                    return
                self.send_response(answer if isinstance(answer, int) else 200)
                body = b"" if isinstance(answer, int) else answer
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, format: str, *args: object) -> None:
                pass

        class Quiet(ThreadingHTTPServer):
            daemon_threads = True

            def handle_error(self, *_: object) -> None:
                """Clients leave in the middle: that is what is tested."""

        self._server = Quiet(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True)
        self._thread.start()

    def close(self) -> None:
        self.ended.set()
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


@pytest.fixture
def web() -> Iterator[Web]:
    """A web server that answers as a test tells it."""
    made = Web()
    yield made
    made.close()


@pytest.fixture
def other_web() -> Iterator[Web]:
    """Another one."""
    made = Web()
    yield made
    made.close()


@pytest.fixture
def make_parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[MakeParts]:
    """Builds the parts on a folder under the test's own; the same name is the same database and the same files.

    Nothing waits for the disk: these tests end processes, if at all, not machines.
    """
    monkeypatch.setattr("os.fsync", lambda _: None)
    made: list[AnchoringParts] = []

    def make(
        name: str = "node",
        ledger: MemoryLedger | None = None,
        limits: CutLimits | None = None,
        clock: VirtualClock | None = None,
    ) -> AnchoringParts:
        folder = tmp_path / name
        folder.mkdir(exist_ok=True)
        engine = sa.create_engine(f"sqlite:///{folder / 'node.db'}")
        sa.event.listen(engine, "connect", _hurry)
        cas, ledger = LocalCas(folder / "cas"), ledger or MemoryLedger(VirtualClock())
        faults, index, journal = FaultyCas(cas), AnchorIndex(engine), BatchJournal(engine)
        observer = Observer(index, faults, ledger)
        writer = BatchWriter(journal, faults, ledger, observer, limits=limits, clock=clock or VirtualClock())
        made.append(AnchoringParts(folder, engine, cas, faults, ledger, index, journal, observer, writer))
        return made[-1]

    yield make
    for parts in made:
        parts.engine.dispose()


@pytest.fixture
def parts(make_parts: MakeParts) -> AnchoringParts:
    return make_parts()


def _hurry(connection: Any, _: object) -> None:
    connection.execute("PRAGMA synchronous = OFF")
