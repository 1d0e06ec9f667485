"""A witness that lies, or somebody between it and the node: others go on, and nothing unreadable is stored."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
import sqlalchemy as sa

from millstream.anchoring.transparency.checkpoint import Checkpoint
from millstream.anchoring.transparency.entry_proof import SignedHead
from millstream.anchoring.transparency.policy import TrustPolicy
from millstream.anchoring.transparency.signed_note import (
    NoteSignature,
    SignedNote,
    SigningKey,
    encode_note,
    encode_signatures,
    parse_note,
    sign_note,
)
from millstream.anchoring.witness.collector import CosignatureCollector
from millstream.anchoring.witness.cosignature_tables import CosignatureTable, CosignedCheckpoint
from millstream.core.clock import VirtualClock
from millstream.core.sql import writing
from support.witnesses import TestWitness

HONEST, LIAR, THIRD = TestWitness("example.org/honest"), TestWitness("example.org/liar"), TestWitness("example.org/3")
NOTE = sign_note(Checkpoint("example.org/log", 5, b"a" * 32).text, [SigningKey("example.org/log", b"k" * 32)])

Answer = Callable[[SignedNote], str]


def signature(witness: TestWitness, note: SignedNote, time: int = 1_790_000_000) -> NoteSignature:
    return witness.cosign(note, time).signatures[-1]


def honest(note: SignedNote) -> str:
    return encode_signatures([signature(HONEST, note)])


def many_copies(note: SignedNote) -> str:
    return encode_signatures([signature(LIAR, note)] * 64)


def many_times(note: SignedNote) -> str:
    return encode_signatures([signature(LIAR, note, 1_790_000_000 + number) for number in range(64)])


def another_text(note: SignedNote) -> str:
    """Signs a longer text, which the answer contains."""
    longer = SignedNote(f"{note.text}\nmore\n", note.signatures)
    return f"more\n\n{encode_signatures([signature(LIAR, longer)])}"


class OneCheckpoint:
    """A ledger whose newest checkpoint is :data:`NOTE`."""

    def released(self) -> SignedHead:
        return CosignedCheckpoint(encode_note(NOTE), 5, 0)

    def consistency_path(self, old: int, new: int | None = None) -> list[bytes]:
        return []

    def publish_cosigned(self, data: bytes) -> None:
        parse_note(data)


@pytest.fixture
def answers() -> dict[str, Answer]:
    """What the witness at each path answers."""
    return {"/honest/add-checkpoint": honest}


@pytest.fixture
def url(answers: dict[str, Answer]) -> Iterator[str]:
    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            request = self.rfile.read(int(self.headers["Content-Length"])).decode()
            body = answers[self.path](parse_note(request.partition("\n\n")[2].encode())).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture
def table(tmp_path: Path) -> Iterator[CosignatureTable]:
    engine = sa.create_engine(f"sqlite:///{tmp_path}/node.db")  # witnesses are asked side by side
    yield CosignatureTable(engine, "anchors")
    engine.dispose()


def collector(table: CosignatureTable, url: str) -> CosignatureCollector:
    witnesses = {"honest": HONEST.key, "liar": LIAR.key}
    policy = TrustPolicy(
        logs=(), witnesses=witnesses, quorum="honest", urls={name: f"{url}/{name}" for name in witnesses}
    )
    return CosignatureCollector(OneCheckpoint(), policy, table, VirtualClock())


@pytest.mark.parametrize(
    ("lie", "signed"),
    [(many_copies, ("honest", "liar")), (many_times, ("honest", "liar")), (another_text, ("honest",))],
)
def test_whatever_a_witness_signs_the_others_are_collected(
    table: CosignatureTable, url: str, answers: dict[str, Answer], lie: Answer, signed: tuple[str, ...]
) -> None:
    answers["/liar/add-checkpoint"] = lie
    asking = collector(table, url)
    assert asking.collect()
    status = asking.status()
    assert (status.signed, status.missing) == (signed, 0)
    assert len(parse_note(asking.with_cosignatures(encode_note(NOTE))).signatures) == 1 + len(signed)
    if lie is many_times:
        assert signature(LIAR, NOTE, 1_790_000_063) in parse_note(asking.cosigned()).signatures
    if lie is another_text:
        assert "signed another text" in str(status.witnesses["liar"].problem)


def test_a_checkpoint_with_more_signatures_than_a_note_may_have_is_collected_anew(
    table: CosignatureTable, url: str, answers: dict[str, Answer]
) -> None:
    answers["/liar/add-checkpoint"] = many_copies
    poisoned = CosignedCheckpoint(encode_note(NOTE) + many_copies(NOTE).encode(), 5, 1, 1)  # as an earlier version did
    with writing(table._engine) as connection:
        for complete in (False, True):
            table._put(connection, poisoned, complete=complete)
    asking = collector(table, url)
    assert (asking.status().signed, asking.status().complete) == ((), None)
    assert asking.collect()
    assert asking.status().signed == ("honest", "liar")


def test_one_signature_of_each_key_is_kept_and_no_more_than_a_note_may_have(table: CosignatureTable) -> None:
    policy = TrustPolicy(logs=(), witnesses={"third": THIRD.key}, quorum="third")
    table.start(None, CosignedCheckpoint(encode_note(NOTE), 5, 1))
    for time in (7, 8):
        table.add(SignedNote(NOTE.text, (signature(THIRD, NOTE, time),) * 2), policy, 1)
    collecting = table.collecting()
    assert collecting is not None
    assert parse_note(collecting.data).signatures == (*NOTE.signatures, signature(THIRD, NOTE, 8))
    others = tuple(signature(TestWitness(f"example.org/{number}"), NOTE) for number in range(100, 163))
    assert table.add(SignedNote(NOTE.text, others), policy, 1) == collecting
