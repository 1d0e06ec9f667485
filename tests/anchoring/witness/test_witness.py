"""A witness cosigns a tree only if it extends the one that it cosigned last, whoever asks, in whatever order."""

from __future__ import annotations

import itertools
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path

import hypothesis.strategies as st
import pytest
from hypothesis import given
from hypothesis.stateful import RuleBasedStateMachine, rule

from millstream.anchoring.transparency.checkpoint import parse_checkpoint
from millstream.anchoring.transparency.signed_note import SigningKey, VerifierKey, parse_note, verify_note
from millstream.anchoring.witness import Witness, WitnessKey, WitnessState
from millstream.anchoring.witness.requests import SIZE_MEDIA
from millstream.core.clock import MICROSECONDS, VirtualClock
from millstream.core.sqlite_file import DatabaseFileError
from suite.sizes import examples, machine
from support.witnessed_log import WitnessedLog

LOG = WitnessedLog()
FORK = WitnessedLog(branch="other", forked_at=100)
KEY = WitnessKey("example.net/witness", bytes(range(32)))
NOON = 1_790_000_000


def cosigned(note: bytes, answer: bytes) -> VerifierKey:
    """The key whose cosignature of *note* is in *answer*."""
    text = parse_note(note).text
    (verified,) = verify_note(parse_note(f"{text}\n".encode() + answer), [KEY.verifier_key])
    return verified.key


@pytest.fixture
def state(tmp_path: Path) -> Iterator[WitnessState]:
    opened = WitnessState(tmp_path / "witness.db")
    yield opened
    opened.close()


@pytest.fixture
def witness(state: WitnessState) -> Witness:
    return Witness(KEY, [LOG.key.verifier_key], state, VirtualClock(NOON * MICROSECONDS))


def test_each_tree_that_extends_the_last_one_is_cosigned_with_the_time(witness: Witness, state: WitnessState) -> None:
    for old, new in itertools.pairwise([0, 1, 7, 7, 8, 255, 256, 257, 300]):
        answer = witness.add_checkpoint(LOG.request(old, new))
        assert (answer.status, cosigned(LOG.checkpoint(new), answer.body)) == (200, KEY.verifier_key)
        note = parse_note(f"{parse_note(LOG.checkpoint(new)).text}\n".encode() + answer.body)
        assert verify_note(note, [KEY.verifier_key])[0].time == NOON
        assert [(head.origin, head.size) for head in state.heads()] == [(LOG.key.name, new)]
    assert state.heads()[0].checkpoint == LOG.checkpoint(300)


def test_a_tree_of_another_branch_is_refused_and_two_roots_of_one_size_are_kept_as_evidence(
    witness: Witness, state: WitnessState
) -> None:
    assert witness.add_checkpoint(LOG.request(0, 200)).status == 200
    assert witness.add_checkpoint(FORK.request(200, 250)).status == 422
    answer = witness.add_checkpoint(FORK.request(200, 200))
    assert (answer.status, answer.media) == (409, "text/plain; charset=utf-8")
    witness.add_checkpoint(FORK.request(200, 200))
    (fork,) = state.forks()
    assert (fork.size, fork.recorded, fork.offered) == (200, LOG.checkpoint(200), FORK.checkpoint(200))
    assert [head.size for head in state.heads()] == [200]
    assert witness.add_checkpoint(LOG.request(200, 300)).status == 200


@pytest.mark.parametrize(
    ("body", "status"),
    [
        (b"", 400),
        (b"old 0\n\n", 400),
        (b"old 00\n\n" + LOG.checkpoint(5), 400),
        (b"old -1\n\n" + LOG.checkpoint(5), 400),
        (b"old 99999999999999999999\n\n" + LOG.checkpoint(5), 400),
        (b"old 9223372036854775808\n\n" + LOG.checkpoint(5), 400),
        (b"old 0\nAAAA\n\n" + LOG.checkpoint(5), 400),
        (b"old 0\n" + b"A" * 43 + b"=\n" * 1 + b"\n" + LOG.checkpoint(5), 422),
        (b"old 0\n" + (b"A" * 43 + b"=\n") * 64 + b"\n" + LOG.checkpoint(5), 400),
        (b"old 6\n\n" + LOG.checkpoint(5), 400),
        (b"old 0\n\n" + WitnessedLog("example.org/another", size=9).checkpoint(5), 404),
        (b"old 0\n\n" + LOG.checkpoint(5).rpartition("—".encode())[0], 400),
        (b"old 0\n\n" + WitnessedLog(size=9, branch="x").checkpoint(5).replace(b"\n5\n", b"\n6\n"), 403),
        (b"old 3\n\n" + LOG.checkpoint(5), 409),
    ],
)  # fmt: skip
def test_a_request_that_cannot_be_granted_has_the_status_of_the_protocol(
    witness: Witness, state: WitnessState, body: bytes, status: int
) -> None:
    assert witness.add_checkpoint(body).status == status
    assert state.heads() == []


def test_a_signature_of_another_key_is_refused(witness: Witness) -> None:
    stranger = WitnessedLog()
    stranger.key = SigningKey(LOG.key.name, bytes(32))
    assert witness.add_checkpoint(stranger.request(0, 5)).status == 403


def test_the_size_that_is_known_is_told_to_who_states_another(witness: Witness) -> None:
    witness.add_checkpoint(LOG.request(0, 40))
    for old in (0, 39, 41):
        answer = witness.add_checkpoint(LOG.request(old, 50))
        assert (answer.status, answer.media, answer.body) == (409, SIZE_MEDIA, b"40\n")


def test_an_empty_tree_has_the_root_of_nothing(witness: Witness) -> None:
    assert witness.add_checkpoint(LOG.request(0, 0)).status == 200
    assert witness.add_checkpoint(LOG.request(0, 9)).status == 200


def test_extension_lines_are_covered_by_the_cosignature(witness: Witness) -> None:
    note = LOG.checkpoint(5, "more", "and more")
    answer = witness.add_checkpoint(b"old 0\n\n" + note)
    assert cosigned(note, answer.body) == KEY.verifier_key


def test_two_keys_of_one_ledger_are_trusted_while_it_rotates_them(state: WitnessState) -> None:
    new = WitnessedLog()
    new.key = SigningKey(LOG.key.name, bytes(32))
    witness = Witness(KEY, [LOG.key.verifier_key, new.key.verifier_key], state, VirtualClock())
    assert witness.add_checkpoint(LOG.request(0, 5)).status == 200
    assert witness.add_checkpoint(new.request(5, 9)).status == 200


def test_what_was_cosigned_is_known_after_a_restart_and_to_a_second_process(tmp_path: Path) -> None:
    for old, new in ((0, 5), (5, 100), (100, 300)):
        state = WitnessState(tmp_path / "w.db")
        assert (
            Witness(KEY, [LOG.key.verifier_key], state, VirtualClock()).add_checkpoint(LOG.request(old, new)).status
            == 200
        )
        state.close()
    assert (tmp_path / "w.db").stat().st_mode & 0o777 == 0o600


def test_a_damaged_state_is_an_error_that_says_what_must_not_be_done(tmp_path: Path) -> None:
    (tmp_path / "w.db").write_bytes(b"nonsense" * 1_000)
    with pytest.raises(DatabaseFileError, match=r"do not restore .* backup, .* retire the key of the witness"):
        WitnessState(tmp_path / "w.db")


def test_many_clients_at_once_get_cosignatures_of_one_history(tmp_path: Path) -> None:
    """Half of them ask for trees of a fork: whatever order they come in, one branch is cosigned from then on."""
    states = [WitnessState(tmp_path / "w.db") for _ in range(2)]
    witnesses = [Witness(KEY, [LOG.key.verifier_key], state, VirtualClock()) for state in states]
    granted: list[bytes] = []

    def ask(log: WitnessedLog, witness: Witness, sizes: range) -> None:
        known = 0
        for size in sizes:
            answer = witness.add_checkpoint(log.request(min(known, size), size))
            if answer.status == 409 and answer.media == SIZE_MEDIA:
                known = int(answer.body)
            if answer.status == 200:
                granted.append(log.checkpoint(size))

    threads = [
        threading.Thread(target=ask, args=(log, witnesses[number], range(101 + number, 300, 7)))
        for log, number in itertools.product((LOG, FORK), range(2))
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for state in states:
        state.close()
    assert granted
    assert len({checkpoint in {LOG.checkpoint(size) for size in range(301)} for checkpoint in granted}) == 1


@given(body=st.binary(max_size=400) | st.binary(max_size=60).map(lambda head: head + b"\n\n" + LOG.checkpoint(5)))
@examples(ci=200, long=5_000)
def test_whatever_is_sent_is_answered(body: bytes) -> None:
    answer = Witness(KEY, [LOG.key.verifier_key], _NoState(), VirtualClock()).add_checkpoint(body)
    assert answer.status in (400, 403, 404)


class _NoState(WitnessState):
    """A state that must not be asked for a request that nobody signed."""

    def __init__(self) -> None:
        pass


class TwoBranches(RuleBasedStateMachine):
    """Any requests for two branches of a ledger: all that is cosigned lies on one, and sizes never decrease."""

    def __init__(self) -> None:
        super().__init__()
        self.size, self.branch = 0, None
        self.clock = VirtualClock()
        self.folder = tempfile.TemporaryDirectory()
        self.state = WitnessState(Path(self.folder.name) / "w.db")

    def teardown(self) -> None:
        self.state.close()
        self.folder.cleanup()

    @rule(log=st.sampled_from([LOG, FORK]), old=st.integers(0, 300), new=st.integers(0, 300), honest=st.booleans())
    def ask(self, log: WitnessedLog, old: int, new: int, honest: bool) -> None:
        """*honest* clients state the size that the witness knows."""
        old = self.size if honest else old
        answer = Witness(KEY, [LOG.key.verifier_key], self.state, self.clock).add_checkpoint(log.request(old, new))
        other = log is not self.branch and new > 100 and self.size > 100
        if old > new:
            assert answer.status == 400
        elif old != self.size:
            assert (answer.status, answer.body) == (409, b"%d\n" % self.size)
        elif other:
            assert answer.status == (409 if new == self.size else 422)
        else:
            assert answer.status == 200
            assert parse_checkpoint(parse_note(self.state.heads()[0].checkpoint)).size == new
            self.size = new
            self.branch = log if new > 100 and self.branch is None else self.branch

    @rule()
    def restart(self) -> None:
        """The process ends and starts again."""
        self.state.close()
        self.state = WitnessState(Path(self.folder.name) / "w.db")


TestTwoBranches = TwoBranches.TestCase
TestTwoBranches.settings = machine(ci=10, long=300, steps=30)
