"""What is known of a session after any sequence of stores, releases and deaths."""

from __future__ import annotations

import struct
import tempfile
from pathlib import Path

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from millstream.core.documents import FileDocument
from millstream.core.message import Message
from millstream.ingest import Receipts, ReceiptsError, ReceivedMessage
from millstream.ingest.publish_packet import decode_publish
from millstream.ingest.receipts import marked
from millstream.log import LogSpec, open_store
from suite.sizes import machine


def receipts_in(folder, *logs, client=""):
    return Receipts(FileDocument(folder / "session.json"), logs, client=client, make_name=lambda: "made-up")


@pytest.fixture
def log():
    with open_store("memory://") as store:
        yield store.log(LogSpec("in"))


def test_the_name_is_made_up_once_and_kept(tmp_path, log):
    assert receipts_in(tmp_path, log).client == "made-up"
    Receipts(FileDocument(tmp_path / "session.json"), [log], make_name=lambda: pytest.fail("a second name was made"))


def test_another_name_is_another_session(tmp_path, log):
    first = receipts_in(tmp_path, log)
    first.subscribed({"a": 2})
    first.stored([7])
    first.release([])
    other = receipts_in(tmp_path, log, client="mine")
    assert (other.client, other.topics, other.held) == ("mine", {}, frozenset())


def test_messages_under_qos_2_from_before_a_change_to_qos_1_are_known_after_a_death(tmp_path, log):
    receipts = receipts_in(tmp_path, log)
    receipts.subscribed({"a": 2})
    receipts.subscribed({"a": 1})
    for packet in (7, 8):
        with log.writer() as writer:
            writer.append(marked([Message(b"x")], ReceivedMessage("a", b"x", 2, packet)))
        receipts = receipts_in(tmp_path, log)
        assert packet in receipts.held
    receipts.begin()
    receipts.subscribed({"a": 1})
    with log.writer() as writer:
        writer.append([Message(b"x", headers=(("mqtt-packet", b"9"),))])
    assert receipts_in(tmp_path, log).held == frozenset()


def test_a_damaged_file_is_named(tmp_path, log):
    (tmp_path / "session.json").write_text("{")
    with pytest.raises(ReceiptsError, match=r"session\.json is not a valid session record"):
        receipts_in(tmp_path, log)


def test_a_message_that_comes_for_the_first_time_is_never_taken_for_an_old_one(tmp_path, log):
    receipts = receipts_in(tmp_path, log)
    receipts.stored([5])
    assert receipts.is_stored(ReceivedMessage("t", b"", 2, 5, again=True))
    assert not receipts.is_stored(ReceivedMessage("t", b"", 2, 5, again=False))
    assert not receipts.is_stored(ReceivedMessage("t", b"", 1, 5, again=True))
    assert not receipts.is_stored(ReceivedMessage("t", b"", 2, 6, again=True))


class ReceiptsMachine(RuleBasedStateMachine):
    """A broker that uses a few packet identifiers again and again, and a process that dies at any point."""

    @initialize(folder=st.none())
    def begin(self, folder):
        self.folder = tempfile.TemporaryDirectory()
        self.path = Path(self.folder.name)
        self.store = open_store("memory://")
        self.logs = [self.store.log(LogSpec(name)) for name in ("in", "in.rejects")]
        self.writers = [log.writer() for log in self.logs]
        self.receipts = receipts_in(self.path, *self.logs)
        self.receipts.subscribed({"#": 2})
        self.unreleased = set()

    @rule(packet=st.integers(1, 6), aside=st.booleans(), dies=st.booleans())
    def deliver(self, packet, aside, dies):
        """The broker sends a message under an identifier that is free; it is stored, and perhaps we die then."""
        if packet in self.unreleased:
            assert self.receipts.is_stored(ReceivedMessage("t", b"x", 2, packet, again=True))
            return
        arrival = ReceivedMessage("t", b"x", 2, packet)
        self.writers[aside].append(marked([Message(b"x"), Message(b"y")], arrival))
        self.unreleased.add(packet)
        if dies:
            self.die()
        else:
            self.receipts.stored([packet])

    @rule(packets=st.sets(st.integers(1, 6)), dies=st.booleans())
    def release(self, packets, dies):
        """The broker releases what it has had a PUBREC for, and may use the identifiers again."""
        self.receipts.release(packets & self.unreleased)
        self.unreleased -= packets
        if dies:
            self.die()

    @rule()
    def die(self):
        self.receipts = receipts_in(self.path, *self.logs)

    @rule()
    def lose_the_session(self):
        self.receipts.begin()
        self.receipts.subscribed({"#": 2})
        self.unreleased.clear()

    @invariant()
    def exactly_what_the_broker_may_send_again_is_known(self):
        if hasattr(self, "receipts"):
            assert self.receipts.held == self.unreleased

    def teardown(self):
        for writer in self.writers:
            writer.close()
        self.store.close()
        self.folder.cleanup()


TestReceiptsMachine = ReceiptsMachine.TestCase
TestReceiptsMachine.settings = machine(ci=12, long=300, steps=20)


@pytest.mark.parametrize("qos", [0, 1, 2])
@pytest.mark.parametrize("properties", [b"", b"\x01\x00", b"\x26" + b"\x00\x01n\x00\xc8" + b"v" * 200])
def test_a_publish_packet_is_taken_apart(qos, properties):
    count = len(properties)
    length = bytes([count] if count < 128 else [count & 127 | 128, count >> 7])
    packet = b"\x00\x03a/b" + (b"\x12\x34" if qos else b"") + length + properties + b"payload"
    arrival = decode_publish(0x39 & ~6 | qos << 1, packet, properties=True)
    assert arrival == ReceivedMessage("a/b", b"payload", qos, 0x1234 if qos else 0, again=True, retained=True)
    for end in range(len(packet) - len(b"payload")):
        with pytest.raises((IndexError, struct.error)):
            decode_publish(0x30 | qos << 1, packet[:end], properties=True)


@pytest.mark.parametrize(("length", "is_kept"), [(54, False), (55, True), (65_000, False)])
def test_only_what_has_the_length_of_a_trace_is_copied_to_the_records(length, is_kept):
    name, value = b"traceparent", b"0" * length
    prop = b"\x26" + struct.pack("!H", len(name)) + name + struct.pack("!H", length) + value
    count = bytearray()
    left = len(prop)
    while left > 127:
        count.append(left & 127 | 128)
        left >>= 7
    packet = b"\x00\x01a" + bytes(count) + bytes([left]) + prop + b"1"
    assert decode_publish(0x30, packet, properties=True).trace == (value.decode() if is_kept else "")
