"""Sessions that were ended stay ended, sign-ins leave a bounded trace, and a notice is shown to its session alone."""

from __future__ import annotations

import base64
import dataclasses
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import sqlalchemy as sa

from millstream.core.clock import VirtualClock
from millstream.core.errors import MillstreamError
from millstream.core.passwords import hash_password
from millstream.rest import access_control
from millstream.rest.access_control import (
    MAX_FAILED_SIGN_INS,
    AccessControl,
    AuthenticationError,
    SignInsBusyError,
    TooManySignInsError,
)
from millstream.rest.operator_audit_log import OperatorAuditEvent, OperatorAuditLog
from millstream.rest.sign_ins import MOST_EVENTS, UNKNOWN, SignedOutSessions, SignInAudit
from millstream.settings.console import ConsoleSettings, Role, UserSettings
from millstream.testing.waiting import until

PASSWORD = hash_password("secret of vera")
HERE = "192.0.2.1"


@dataclasses.dataclass
class Console:
    """The access control of a console over one folder; :meth:`started` is what a restart makes of it."""

    folder: Path
    clock: VirtualClock = dataclasses.field(default_factory=VirtualClock)

    def __post_init__(self) -> None:
        self.engine = sa.create_engine(f"sqlite:///{self.folder / 'node.db'}")
        self.audit_log = OperatorAuditLog(self.engine, self.clock)

    def started(self) -> AccessControl:
        settings = ConsoleSettings(users={"vera": UserSettings(PASSWORD, Role.VIEWER)})
        return AccessControl(
            settings,
            self.folder,
            self.clock,
            signed_out=SignedOutSessions(self.engine, self.clock),
            audit=SignInAudit(self.audit_log, self.clock, settings.session_hours),
        )

    def events(self) -> Sequence[OperatorAuditEvent]:
        """What the audit log has, the first event first."""
        return list(reversed(self.audit_log.last(1_000)))

    def try_passwords(self, access: AccessControl, number: int, name: str = "vera") -> None:
        """Try *number* wrong passwords, each from another address."""
        for guess in range(number):
            with pytest.raises(MillstreamError):
                access.sign_in(name, "wrong password", f"198.51.100.{guess}")


@pytest.fixture
def console(tmp_path: Path) -> Console:
    return Console(tmp_path)


def test_a_session_that_was_signed_out_stays_so_after_a_restart(console: Console) -> None:
    access = console.started()
    ended, other = (access.sign_in("vera", "secret of vera", HERE) for _ in range(2))
    access.sign_out(ended, HERE)
    for restarted in (access, console.started(), console.started()):
        assert restarted.read_cookie(access.cookie(ended)) is None
        assert restarted.read_cookie(access.cookie(other)) == other


def test_a_sign_out_counts_in_a_second_process_and_is_forgotten_when_the_session_has_expired(console: Console) -> None:
    first, second = console.started(), console.started()
    session = first.sign_in("vera", "secret of vera", HERE)
    first.sign_out(session, HERE)
    console.clock.advance(1)
    assert second.read_cookie(first.cookie(session)) is None
    console.clock.advance(13 * 3600)
    first.sign_out(first.sign_in("vera", "secret of vera", HERE), HERE)
    with console.engine.connect() as connection:
        assert connection.scalar(sa.text("SELECT count(*) FROM console_signed_out")) == 1


@pytest.mark.parametrize("member", ["", '"unknown":'])
def test_a_cookie_of_many_brackets_is_none_of_ours(console: Console, member: str) -> None:
    access = console.started()
    text = "{" + member + "[" * 100_000
    cookie = base64.urlsafe_b64encode(text.encode()).decode().rstrip("=") + ".x"
    assert access.read_cookie(cookie) is None


def test_a_sign_out_without_a_user_is_not_recorded(console: Console) -> None:
    access = console.started()
    access.sign_out(access.new_session(), HERE)
    with console.engine.connect() as connection:
        assert connection.scalar(sa.text("SELECT count(*) FROM console_signed_out")) == 0
    assert console.events() == []


def test_two_threads_that_sign_out_at_once_end_both_sessions_at_once(console: Console) -> None:
    access = console.started()
    first, second = (access.sign_in("vera", "secret of vera", HERE) for _ in range(2))
    now, waiting, goes_on = console.clock.now, threading.Event(), threading.Event()

    def hold() -> int:
        """The time; the first thread to ask for it waits while it has read, and not written yet, what ended here."""
        if not waiting.is_set():
            waiting.set()
            assert goes_on.wait(60)
        return now()

    access._signed_out._ended_here = {"earlier": now() + 1}
    console.clock.now = hold  # type: ignore[method-assign]
    with ThreadPoolExecutor(1) as pool:
        ending = pool.submit(access._signed_out.add, first.nonce, first.expires)
        assert waiting.wait(60)
        access.sign_out(second, HERE)
        goes_on.set()
        ending.result()
    assert access.read_cookie(access.cookie(first)) is None
    assert access.read_cookie(access.cookie(second)) is None


def test_one_thread_reads_the_sessions_that_were_signed_out_and_the_others_answer_from_memory(console: Console) -> None:
    access, reads, holding = console.started(), list[str](), threading.Event()

    @sa.event.listens_for(console.engine, "before_cursor_execute")
    def hold(_connection: object, _cursor: object, statement: str, *_more: object) -> None:
        reads.append(statement)
        if len(reads) == 1:
            assert holding.wait(60)

    cookie = access.cookie(access.new_session())
    console.clock.advance(1)
    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(access.read_cookie, cookie)
        until(lambda: bool(reads), "the first look")
        console.clock.advance(1)
        assert access.read_cookie(cookie) is not None
        assert len(reads) == 1
        holding.set()
        assert first.result() is not None


def test_sign_ins_failed_ones_and_sign_outs_are_recorded_with_user_and_address(console: Console) -> None:
    access = console.started()
    for name in ("vera", "typed-password-by-mistake"):
        with pytest.raises(AuthenticationError):
            access.sign_in(name, "wrong password", HERE)
    access.sign_out(access.sign_in("vera", "secret of vera", HERE), HERE)
    seen = [(event.action, event.user, event.target, event.reason) for event in console.events()]
    assert seen == [
        ("failed sign-in", "vera", f"address {HERE}", "wrong password"),
        ("failed sign-in", UNKNOWN, f"address {HERE}", "no such user"),
        ("sign in", "vera", f"address {HERE}", ""),
        ("sign out", "vera", f"address {HERE}", ""),
    ]


def test_a_program_is_recorded_once_and_its_wrong_password_each_time(console: Console) -> None:
    access = console.started()
    headers = {p: "Basic " + base64.b64encode(f"vera:{p}".encode()).decode() for p in ("secret of vera", "wrong one")}
    for _ in range(3):
        access.basic(headers["secret of vera"], HERE)
        console.clock.advance(600)
    with pytest.raises(AuthenticationError):
        access.basic(headers["wrong one"], HERE)
    assert [(event.action, event.facts) for event in console.events()] == [
        ("sign in", {"kind": "program"}),
        ("failed sign-in", {}),
    ]


def test_a_program_whose_sign_in_could_not_be_recorded_is_recorded_with_its_next_request(console: Console) -> None:
    access = console.started()
    header = "Basic " + base64.b64encode(b"vera:secret of vera").decode()
    with console.engine.begin() as connection:
        connection.execute(sa.text("ALTER TABLE console_trail RENAME TO hidden"))
    for _ in range(2):
        with pytest.raises(sa.exc.OperationalError):
            access.basic(header, HERE)
    with console.engine.begin() as connection:
        connection.execute(sa.text("ALTER TABLE hidden RENAME TO console_trail"))
    access.basic(header, HERE)
    assert [(event.action, event.user) for event in console.events()] == [("sign in", "vera")]


def test_an_address_has_five_guesses_also_if_it_makes_them_at_once(console: Console) -> None:
    access = console.started()

    def guess(_number: int) -> type[Exception]:
        with pytest.raises(MillstreamError) as caught:
            access.sign_in("vera", "wrong password", HERE)
        return caught.type

    with ThreadPoolExecutor(12) as pool:
        answers = list(pool.map(guess, range(12)))
    assert answers.count(AuthenticationError) == MAX_FAILED_SIGN_INS
    assert answers.count(TooManySignInsError) == 12 - MAX_FAILED_SIGN_INS


def test_the_addresses_of_one_network_of_ipv6_have_their_guesses_together(console: Console) -> None:
    limiter = access_control._SignInLimiter(console.clock)
    for number in range(MAX_FAILED_SIGN_INS):
        limiter.count(f"2001:db8:1:2::{number}")
        limiter.count(f"::ffff:192.0.2.{number}")
    assert limiter.turn("2001:db8:1:2:ffff::") is limiter.turn("2001:db8:1:2::1")
    with pytest.raises(TooManySignInsError):
        limiter.require("2001:db8:1:2:ffff::")
    for other in ("2001:db8:1:3::", "::ffff:192.0.2.1", "192.0.2.1", "::1", ""):
        limiter.require(other)


def test_the_number_of_addresses_with_wrong_passwords_that_are_remembered_is_bounded(
    console: Console, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(access_control, "_REMEMBERED_GUESSES", 2)
    limiter = access_control._SignInLimiter(console.clock)
    for address in ("first", "second", "first", "third", "fourth", "fourth"):
        limiter.count(address)
    assert list(limiter._wrong) == ["third", "fourth"]
    assert len(limiter._wrong["fourth"]) == 2


def test_an_empty_key_file_that_a_killed_process_left_gets_a_key(console: Console) -> None:
    (console.folder / "console.key").touch(0o600)
    access = console.started()
    session = access.new_session("vera")
    assert console.started().read_cookie(access.cookie(session)) == session
    (console.folder / "console.key").write_bytes(b"short")
    with pytest.raises(AuthenticationError, match="does not contain a key of"):
        console.started()


@pytest.mark.parametrize("header", ["Basic \xe9", "Basic ?", "Basic /w=="])
def test_a_header_that_is_not_base64_of_a_text_is_refused(console: Console, header: str) -> None:
    with pytest.raises(AuthenticationError, match="invalid Authorization header"):
        console.started().basic(header, HERE)


def test_many_failed_sign_ins_are_counted_and_not_all_recorded(console: Console) -> None:
    access = console.started()
    console.try_passwords(access, MOST_EVENTS + 7)
    access.sign_in("vera", "secret of vera", HERE)  # which attempts at guessing cannot hide
    assert [event.action for event in console.events()] == ["failed sign-in"] * MOST_EVENTS + ["sign in"]
    console.clock.advance(60)
    console.try_passwords(access, 1)
    assert console.events()[-1].facts == {"suppressed": 7}


def test_an_address_that_is_blocked_is_recorded(console: Console) -> None:
    access = console.started()
    for _ in range(5):
        with pytest.raises(AuthenticationError):
            access.sign_in("vera", "wrong password", HERE)
    with pytest.raises(TooManySignInsError):
        access.sign_in("vera", "secret of vera", HERE)
    assert console.events()[-1].reason == "the address is blocked for 60 s"


def test_a_notice_is_shown_to_its_session_alone_and_for_a_minute(console: Console) -> None:
    access = console.started()
    session, other = access.new_session(), access.new_session()
    signed = access.sign_notice(session, "Saved. 1.5 % more")
    assert access.read_notice(session, signed) == "Saved. 1.5 % more"
    for forged in ("", "Call 555-0100", "0.0.Call 555-0100", signed + "!", signed.partition(".")[2], "é.1.x"):
        assert access.read_notice(session, forged) == ""
    assert access.read_notice(other, signed) == ""
    console.clock.advance(61)
    assert access.read_notice(session, signed) == ""


def test_few_passwords_are_hashed_at_a_time_whatever_the_number_of_addresses(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hashing, most, running, lock = threading.Event(), [0], [0], threading.Lock()

    def hash_slowly(_password: str, _hashed: str) -> bool:
        with lock:
            running[0] += 1
            most[0] = max(most[0], running[0])
        hashing.wait(60)
        with lock:
            running[0] -= 1
        return True

    class Hashers(threading.BoundedSemaphore):
        """Counts those that have come, with the time that each will wait."""

        def acquire(self, blocking: bool = True, timeout: float | None = None) -> bool:
            with lock:
                come[0] += 1
            return super().acquire(blocking, timeout)

    come = [0]
    monkeypatch.setattr(access_control, "_hashers", Hashers(access_control._hashers._initial_value))
    monkeypatch.setattr(access_control, "_HASHER_SECONDS", 60.0)
    monkeypatch.setattr(access_control, "is_password", hash_slowly)
    access = Console(tmp_path).started()
    turns = {id(access._sign_in_limiter.turn(address)): address for address in (f"192.0.2.{n}" for n in range(256))}
    another, *addresses = list(turns.values())[:9]  # some addresses wait for each other's turn: none of these
    with ThreadPoolExecutor(8) as pool:
        tries = [pool.submit(access.sign_in, "vera", "x", address) for address in addresses]
        until(lambda: (come[0], running[0]) == (8, 2), "two are hashed, and the others wait")
        monkeypatch.setattr(access_control, "_HASHER_SECONDS", 0.01)
        with pytest.raises(SignInsBusyError):
            access.sign_in("vera", "x", another)
        hashing.set()
        assert [one.result().name for one in tries] == ["vera"] * 8
    assert most == [2]
