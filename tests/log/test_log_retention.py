"""A log is kept by age, bytes, count and consumers; a clock that jumps trims nothing."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from millstream.cli import main
from millstream.core.clock import MICROSECONDS, VirtualClock
from millstream.log import Log, LogInputError, LogSpec, LogStore, Message, Retention, RetentionEnforcer, open_store
from millstream.log.backends.sqlite.backend import SqliteBackend
from millstream.log.spec import system_log
from millstream.log.upkeep.retention import RETENTION
from millstream.log.upkeep.upkeep_thread import run_upkeep

SPEC = LogSpec("weather")
DAY = 86_400 * MICROSECONDS


@pytest.fixture
def clock() -> VirtualClock:
    return VirtualClock()


@pytest.fixture
def store(tmp_path: Path, clock: VirtualClock) -> Iterator[LogStore]:
    with LogStore(SqliteBackend(tmp_path / "log.db", clock), clock) as store:
        yield store


@pytest.fixture
def log(store: LogStore, clock: VirtualClock) -> Log:
    """Ten blocks of ten messages, a block a day; the last one was received an hour ago."""
    log = store.log(SPEC)
    with log.writer() as writer:
        for day in range(10):
            time = clock.now() - (9 - day) * DAY - DAY // 24
            writer.append([Message(b"%d" % n, received_at=time) for n in range(10)])
    return log


def test_what_is_older_than_the_age_goes_by_whole_blocks(log: Log, clock: VirtualClock) -> None:
    plan = RetentionEnforcer(log, clock, Retention(max_age=4 * DAY)).run_once()
    assert (plan.first_id, plan.messages, log.first_id) == (61, 60, 61)
    assert plan.freed_bytes > 0
    assert RetentionEnforcer(log, clock, Retention(max_age=4 * DAY)).run_once().first_id is None


def test_the_oldest_go_while_there_are_too_many_messages_or_bytes(log: Log, clock: VirtualClock) -> None:
    assert RetentionEnforcer(log, clock, Retention(max_count=75)).run_once().first_id == 26
    size = log.block_ranges()[-1].bytes
    plan = RetentionEnforcer(log, clock, Retention(max_bytes=3 * size)).run_once()
    assert (plan.first_id, log.info().blocks, log.info().bytes) == (71, 3, 3 * size)
    assert RetentionEnforcer(log, clock, Retention(max_count=0)).run_once().first_id == 101
    assert RetentionEnforcer(log, clock, Retention(max_count=0)).run_once().first_id is None


def test_a_dry_run_changes_nothing(log: Log, clock: VirtualClock) -> None:
    policy = Retention(max_age=4 * DAY, max_count=10)
    assert RetentionEnforcer(log, clock, policy).run_once(dry_run=True).first_id == 91
    assert (log.first_id, log.info().count) == (1, 100)


def test_what_consumers_have_not_acknowledged_stays_and_who_pins_it_is_told(log: Log, clock: VirtualClock) -> None:
    log.set_pointer("slow", 15)
    log.set_pointer("fast", 70)
    log.set_pointer("done", 100)
    plan = RetentionEnforcer(log, clock, Retention(max_count=20, keep_consumers=True)).run_once()
    assert (plan.first_id, plan.pinned, plan.lost) == (16, {"slow": 65, "fast": 10}, {})
    assert log.first_id == 16


def test_the_cap_is_harder_than_any_consumer_and_says_who_loses_what(log: Log, clock: VirtualClock) -> None:
    log.set_pointer("slow", 15)
    log.set_pointer("fast", 70)
    size = log.block_ranges()[-1].bytes
    policy = Retention(max_count=20, keep_consumers=True, cap_bytes=5 * size)
    plan = RetentionEnforcer(log, clock, policy).run_once()
    assert (plan.first_id, plan.lost) == (51, {"slow": 35})
    with log.reader("slow") as reader:
        assert next(reader.batches()).ids.last == 50


def test_a_pinned_range_that_is_trimmed_by_hand_comes_as_a_gap(log: Log) -> None:
    log.set_pointer("slow", 15)
    log.trim(41)
    with log.reader("slow") as reader:
        gap, *rest = reader.batches()
        assert (gap.first_id, gap.last_id, len(gap)) == (16, 40, 0)
        assert [m.id for batch in rest for m in batch] == list(range(41, 101))
        reader.ack(range(41, 101))
        assert reader.pointer == 100


def test_a_clock_that_jumps_ahead_trims_nothing_until_somebody_vouches_for_it(
    log: Log, clock: VirtualClock, caplog: pytest.LogCaptureFixture
) -> None:
    policy = Retention(max_age=20 * DAY)
    assert RetentionEnforcer(log, clock, policy).run_once().first_id is None
    clock.jump(365 * 86_400)
    for _ in range(3):
        plan = RetentionEnforcer(log, clock, policy).run_once()
        assert (plan.first_id, log.first_id) == (None, 1)
        assert "365.0 days after the last check" in plan.held[0]
    assert "365.0 days" in caplog.text
    assert RetentionEnforcer(log, clock, policy).run_once(accept_clock=True).first_id == 101


def test_a_changed_age_is_no_check_of_the_clock(log: Log, clock: VirtualClock) -> None:
    log.set_retention(Retention(max_age=20 * DAY))
    assert RetentionEnforcer(log, clock).run_once().first_id is None
    clock.jump(365 * 86_400)
    log.set_retention(Retention(max_age=30 * DAY))
    plan = RetentionEnforcer(log, clock).run_once()
    assert plan.first_id is None
    assert "365.0 days after the last check" in plan.held[0]
    log.set_retention(Retention(max_count=100))
    log.set_retention(Retention(max_age=30 * DAY))
    assert RetentionEnforcer(log, clock).run_once().first_id == 101


@pytest.mark.parametrize("policy", [Retention(max_count=100), None])
def test_a_policy_that_cannot_be_read_can_be_replaced(log: Log, policy: Retention | None) -> None:
    log.put_metadata(RETENTION, b'{"max_count":"many"}')
    log.set_retention(policy)
    assert log.retention == policy


def test_a_clock_that_went_back_trims_nothing_and_time_that_passes_is_believed(log: Log, clock: VirtualClock) -> None:
    policy = Retention(max_age=20 * DAY)
    for seconds in (0, -1000 * 86_400, 1000 * 86_400):
        clock.jump(seconds)
        plan = RetentionEnforcer(log, clock, policy).run_once()
        assert (plan.first_id, plan.held) == (None, ())
    for _ in range(3):
        clock.jump(5 * 86_400)
        plan = RetentionEnforcer(log, clock, policy).run_once()
        assert not plan.held
    assert log.first_id == 51


def test_a_message_that_a_wrong_clock_dated_ahead_keeps_what_follows_it(log: Log, clock: VirtualClock) -> None:
    with log.writer() as writer:
        writer.append([Message(b"from the future", received_at=clock.now() + 1000 * DAY)])
        writer.append([Message(b"after it", received_at=clock.now())])
    plan = RetentionEnforcer(log, clock, Retention(max_age=30 * DAY)).run_once(accept_clock=True)
    assert plan.first_id is None
    clock.jump(100 * 86_400)
    assert RetentionEnforcer(log, clock, Retention(max_age=30 * DAY)).run_once(accept_clock=True).first_id == 101


def test_a_policy_is_kept_with_the_log_and_run_by_whoever_comes_by(
    store: LogStore, log: Log, clock: VirtualClock
) -> None:
    store.log(LogSpec("other"))
    with pytest.raises(LogInputError, match="no retention policy: give a rule such as --max-age 30d; --keep-policy"):
        RetentionEnforcer(log, clock).run_once()
    log.set_retention(Retention(max_count=30))
    (done,) = run_upkeep(store, clock)
    assert done.trimmed is not None
    assert (done.log, done.trimmed.first_id, done.moved, done.error) == ("weather", 71, None, None)
    log.set_retention(None)
    assert list(run_upkeep(store, clock)) == []


def test_a_log_that_is_kept_whole_is_not_trimmed_by_anybody(log: Log, clock: VirtualClock) -> None:
    log.set_retention(Retention(keep_all=True))
    with pytest.raises(LogInputError, match="cannot trim log"):
        log.trim(10)
    with pytest.raises(LogInputError, match="cannot trim log"):
        RetentionEnforcer(log, clock, Retention(max_count=1)).run_once()
    assert RetentionEnforcer(log, clock).run_once().first_id is None


@pytest.mark.parametrize("wrong", [{"max_age": -1}, {"cap_bytes": 5}])
def test_a_policy_that_cannot_be_meant_is_refused(wrong: dict[str, int]) -> None:
    with pytest.raises(LogInputError):
        Retention(**wrong)  # type: ignore[arg-type]


def test_the_command_trims_by_id_by_rules_and_by_the_policy_of_the_log(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    url = f"sqlite:///{tmp_path / 'log.db'}"
    with open_store(url) as store, store.log(SPEC).writer() as writer:
        for _ in range(10):
            writer.append([b"x"] * 10)
        store.log(SPEC).set_pointer("slow", 30)

    def run(*arguments: str, code: int = 0) -> str:
        assert main.run(["log", "trim", "weather", *arguments, "--store", url]) == code
        return "".join(capfd.readouterr())

    assert "would begin at id 6" in run("--below", "6", "--dry-run")
    assert "begins at id 6, 5 messages fewer" in run("--below", "6")
    out = run("--max-count", "20", "--keep-consumers", "--keep-policy")
    assert "slow has not acknowledged 50 messages" in out
    assert "begins at id 31" in out
    assert json.loads(run("--json"))["first_id"] is None
    assert "slow loses 50 messages" in run("--max-count", "20")
    assert "nothing to trim" in run("--max-age", "30d", "--max-bytes", "1GB")
    assert "would begin at id 101" in run("--max-bytes", "0", "--dry-run")
    assert "invalid size" in run("--max-bytes", "many", code=2)
    assert "cannot be combined" in run("--below", "3", "--max-count", "4", code=2)


def test_a_dry_run_refuses_what_the_run_refuses(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    url = f"sqlite:///{tmp_path / 'log.db'}"
    with open_store(url) as store:
        for spec in (SPEC, LogSpec("all"), system_log("ledger", "ledger")):
            with store.log(spec).writer() as writer:
                writer.append([b"x"] * 10)
        store.log(LogSpec("all")).set_retention(Retention(keep_all=True))
    for name, rule, text in (
        ("weather", ("--below", "12"), "choose 1 to 11"),
        ("all", ("--below", "2"), "keeps everything"),
        ("all", ("--max-count", "2"), "keeps everything"),
        ("system:ledger", ("--below", "2"), "but not trimmed"),
    ):
        refusals = []
        for dry in (["--dry-run"], []):
            assert main.run(["log", "trim", name, *rule, *dry, "--store", url]) == 2
            refusals.append(capfd.readouterr().err)
        assert refusals[0] == refusals[1]
        assert text in refusals[0]
