"""Changing the rules of a log that is batched: what is in the log of batches stays, and what follows is certain."""

from __future__ import annotations

import json
import random
import subprocess
import sys
import threading
from pathlib import Path

import msgspec
import pytest

from millstream.batching import BatchConfig, Batcher, ConfigError, Override, Rulebook, SnapshotError
from millstream.batching.errors import BatchServiceError
from millstream.batching.message_events import event_from_message
from millstream.batching.rule_changes import (
    FARTHEST_CHANGE,
    RulesRecord,
    RulesRequest,
    batched_rules,
    change_rules,
    is_requested,
    read_rules,
    request_change,
    take_request,
)
from millstream.batching.service import BatchService
from millstream.core.clock import MICROSECONDS, SystemClock, VirtualClock
from millstream.core.documents import FileDocument
from millstream.core.message import Message
from millstream.log import LogSpec, WriterBusyError, open_store
from millstream.testing.waiting import until
from suite.sizes import sized

OLD, NEW = Rulebook(BatchConfig(50, 20)), Rulebook(BatchConfig(10, 5))
CHILD = Path(__file__).parent / "children" / "serve.py"


def traffic(seed, count, now=0):
    draw, messages = random.Random(seed), []
    for _ in range(count):
        now += draw.randint(0, 6)
        source, key, delay = draw.choice("pqr"), draw.choice(["a", "b", ""]), draw.randint(-25, 28)
        messages.append(Message(b"%d" % draw.randrange(3), key, source, now - delay, now))
    return messages


class Batched:
    """A log that is batched into another one, by one service at a time."""

    def __init__(self, store, folder):
        self.source, self.output = store.log(LogSpec("in")), store.log(LogSpec("out", kind="batches"))
        self.state = FileDocument(folder / "state")

    def append(self, messages):
        with self.source.writer() as writer:
            writer.append(messages)

    def service(self, rules, **options):
        return BatchService(self.source, self.output, rules, self.state, **options)

    def serve(self, rules, **options):
        service = self.service(rules, **options)
        service.step()
        service.close()

    def change(self, rules, since=None, clock=None):
        return change_rules(self.source, self.output, self.state, rules, since, clock=clock or VirtualClock(0))

    def request(self, rules, since=None, clock=None):
        """As the command does where a service is at work."""
        return request_change(self.source, self.output, self.state, rules, since, clock=clock or SystemClock())

    def bodies(self):
        return [message.body for batch in self.output.read() for message in batch]

    def expected(self, rules):
        """The ids of the batches, and the rejects, that *rules* give for all messages at once."""
        messages = [message for batch in self.source.read() for message in batch]
        batcher = Batcher.of(rules)
        outcomes = [batcher.receive_many([event_from_message(message) for message in messages])]
        outcomes.append(batcher.advance(messages[-1].received_at))
        return (
            sorted(batch.batch for outcome in outcomes for batch in outcome.batches),
            sorted((reject.rejected, reject.reason) for outcome in outcomes for reject in outcome.rejects),
        )

    def given(self):
        items = [json.loads(body) for body in self.bodies()]
        batches = [item["batch"] for item in items if "batch" in item]
        return sorted(batches), sorted((item["rejected"], item["reason"]) for item in items if "rejected" in item)


@pytest.fixture
def batched(tmp_path):
    with open_store(f"sqlite:///{tmp_path}/log.db") as store:
        log = Batched(store, tmp_path)
        log.append(traffic(1, 300))
        log.serve(OLD)
        yield log


def test_p5_batches_before_a_change_stay_and_all_batches_follow_from_the_recorded_rules(batched):
    before = batched.bodies()
    rules = batched.change(NEW)
    assert rules.later[-1].since == batched_to(batched) + 21
    for seed in (2, 3):
        batched.append(traffic(seed, 200, now=latest(batched)))
        batched.serve(NEW, commit_every=7)
    assert batched.bodies()[: len(before)] == before
    assert batched.given() == batched.expected(rules)
    assert batched.given() != batched.expected(OLD)


def batched_to(log):
    return batched_rules(log.source, log.output, log.state).clock


def test_rules_change_again_and_back(batched):
    batched.change(NEW)
    batched.append(traffic(2, 200, now=latest(batched)))
    batched.serve(NEW)
    rules = batched.change(OLD, batched_to(batched) + 40)
    batched.append(traffic(3, 200, now=latest(batched)))
    batched.serve(OLD, commit_every=50)
    assert rules.periods == (OLD, NEW, OLD)
    assert batched.given() == batched.expected(rules)


def test_p5_the_whole_log_is_batched_again_from_the_record_alone(batched, tmp_path):
    rules = batched.change(NEW)
    batched.append(traffic(2, 200, now=latest(batched)))
    batched.serve(NEW)
    before = batched.bodies()
    (tmp_path / "state").unlink()
    batched.serve(NEW)
    assert batched.bodies() == before
    assert read_rules(batched.output) == rules


def test_a_service_with_other_rules_than_the_latest_is_refused_and_changes_nothing(batched):
    with pytest.raises(
        ConfigError, match=r"window=10 .*latest rules of log 'out' are .*window=50 .*millstream batch rules"
    ):
        batched.service(NEW)
    batched.change(NEW)
    with pytest.raises(ConfigError, match=r"window=50 .*latest rules of log 'out' are .*window=10"):
        batched.service(OLD)
    batched.serve(NEW)


def test_the_rules_change_only_while_no_service_is_at_work(batched):
    service = batched.service(OLD)
    with pytest.raises(WriterBusyError):
        batched.change(NEW)
    service.close()
    assert read_rules(batched.output) == OLD


def test_p5_a_service_at_work_changes_its_rules_on_request(batched, monkeypatch):
    monkeypatch.setattr("millstream.batching.service._LOOK", 0.05)
    service, stopped = batched.service(OLD, clock=SystemClock(), commit_every=7), threading.Event()
    thread = threading.Thread(target=service.run, args=(stopped.is_set,))
    thread.start()
    batched.append(traffic(2, 200, now=latest(batched)))
    try:
        rules = batched.request(NEW)
        batched.append(traffic(3, 200, now=latest(batched)))
        until(lambda: service.behind == 0, "all messages taken")
        with pytest.raises(ConfigError, match="has the rules in the settings already"):
            batched.request(NEW)
    finally:
        stopped.set()
        thread.join()
    service.close()
    assert rules.later[-1].since < latest(batched)
    assert rules == read_rules(batched.output) == service.rules
    batched.append(traffic(4, 100, now=latest(batched)))
    batched.serve(NEW)
    assert batched.given() == batched.expected(rules)


def test_a_request_that_nobody_answers_is_withdrawn(batched):
    clock = VirtualClock()
    with batched.output.writer("batching"), pytest.raises(BatchServiceError, match="did not answer"):
        batched.request(NEW, clock=clock)  # as a stream that writes there
    service = batched.service(OLD)
    service._change_when_requested()
    service.close()
    assert read_rules(batched.output) == OLD


def test_a_request_is_open_until_it_is_answered_or_too_late(batched):
    with batched.output.writer("batching"):
        record, until_late = RulesRecord(batched.output), 10**15
        request = msgspec.json.encode(RulesRequest(NEW, None, until_late))
        assert not is_requested(record, 0)
        batched.output.put_metadata("batching/rules-request", request)
        assert [is_requested(record, now) for now in (until_late, until_late + 1)] == [True, False]
        take_request(record, OLD, batched_to(batched), 0)
        assert not is_requested(record, 0)
        batched.output.put_metadata("batching/rules-request", request)
        assert take_request(record, read_rules(batched.output), batched_to(batched), 0) is None
        assert not is_requested(record, 0), "it is refused: these are the rules already"


@pytest.mark.parametrize("spoil", ["late", "impossible"])
def test_a_request_that_came_too_late_or_cannot_be_met_changes_nothing(batched, spoil, caplog):
    since = latest(batched) + 5  # would be refused at once if the service had not come further meanwhile
    service, now = batched.service(OLD), SystemClock().now()
    request = RulesRequest(NEW, since, now + 10 * MICROSECONDS if spoil == "impossible" else now - 1)
    batched.output.put_metadata("batching/rules-request", msgspec.json.encode(request))
    batched.append(traffic(2, 50, now=latest(batched)))
    service.step()
    service._change_when_requested()
    service.close()
    assert read_rules(batched.output) == OLD
    answer = batched.output.metadata("batching/rules-request")
    assert (b"cannot change at" in answer) == (spoil == "impossible")
    assert ("cannot change at" in caplog.text) == (spoil == "impossible")


def test_p5_a_service_that_has_lost_its_lease_changes_nothing(batched):
    stalled = batched.service(OLD)
    stalled._writer.close()  # its lease has expired, and it does not know
    service = batched.service(OLD)
    until_late = SystemClock().now() + 60 * MICROSECONDS
    batched.output.put_metadata("batching/rules-request", msgspec.json.encode(RulesRequest(NEW, None, until_late)))
    stalled._change_when_requested()
    assert stalled.rules == OLD
    with pytest.raises(BatchServiceError, match="another process has taken over this log"):
        stalled._record.write(OLD.changed(10**6, 1, NEW))
    service._change_when_requested()
    assert service.rules.current == NEW == read_rules(batched.output).current
    service.close()


def test_a_service_that_has_lost_its_lease_leaves_the_state_of_its_successor(batched):
    stalled = batched.service(OLD)
    stalled._writer.close()  # its lease has expired, and it does not know
    batched.append(traffic(2, 50, now=latest(batched)))
    batched.serve(OLD)
    left = batched.state.read()
    stalled.close()
    assert batched.state.read() == left


def test_a_change_that_would_touch_what_may_be_batched_already_is_refused(batched):
    clock = batched_to(batched)
    with pytest.raises(ConfigError, match=r"cannot change at 1970.*choose 1970"):
        batched.change(NEW, clock + 20)
    with pytest.raises(ConfigError, match=r"cannot change at 1970-02-01T.*too far ahead"):
        batched.change(NEW, clock + FARTHEST_CHANGE + 1)
    with pytest.raises(ConfigError, match="has the rules in the settings already"):
        batched.change(OLD)
    assert read_rules(batched.output) == OLD
    batched.change(NEW, clock + 21)
    with pytest.raises(ConfigError, match="cannot change at"):
        batched.change(OLD, clock + 21)


def test_rules_that_no_manifest_could_hold_are_refused(batched):
    many = tuple(Override(BatchConfig(10, 5), source=f"{n:05}" * 20) for n in range(500))
    with pytest.raises(ConfigError, match="the limit is 100,000: use fewer overrides"):
        batched.change(Rulebook(BatchConfig(10, 5), many))
    assert read_rules(batched.output) == OLD


def test_a_quiet_log_changes_its_rules_up_to_31_days_from_now(batched):
    clock = VirtualClock(40 * 24 * 3600 * MICROSECONDS)
    latest_time = clock.now() + FARTHEST_CHANGE
    with pytest.raises(ConfigError, match="too far ahead"):
        batched.change(NEW, latest_time + 1, clock)
    assert batched.change(NEW, latest_time, clock).later[-1].since == latest_time


def test_rules_change_where_records_may_be_ahead_by_more_than_31_days(tmp_path):
    ahead = Rulebook(BatchConfig(50, 2 * FARTHEST_CHANGE))
    with open_store("memory://") as store:
        log = Batched(store, tmp_path)
        log.append(traffic(1, 50))
        log.serve(ahead)
        assert log.change(NEW).later[-1].since == batched_to(log) + 2 * FARTHEST_CHANGE + 1


def test_a_time_that_no_calendar_has_is_a_number_in_the_error(batched):
    with pytest.raises(ConfigError, match="cannot change at 9223372036854775807,"):
        batched.change(NEW, 2**63 - 1)


class AnsweringClock(VirtualClock):
    """A clock by which *answer* is called, once, as soon as a command waits for its request to be heeded."""

    def __init__(self, answer):
        super().__init__()
        self._answers = [answer]

    def sleep(self, seconds):
        if self._answers:
            self._answers.pop()()
        super().sleep(seconds)


def test_a_refused_request_gives_the_reason_of_the_service(batched):
    service = batched.service(OLD, clock=VirtualClock())
    since = batched_to(batched) + 21

    def go_on():
        service._look_at = 1.0  # it looks for requests after the step only
        batched.append(traffic(2, 50, now=latest(batched)))
        service.step()
        later(service)

    with pytest.raises(ConfigError, match=r"cannot change at .*choose 1970"):
        batched.request(NEW, since, AnsweringClock(go_on))
    assert batched.request(NEW, None, AnsweringClock(lambda: later(service))).current == NEW
    service.close()


def later(service):
    service._look_at = 0.0
    service._change_when_requested()


def test_of_two_requests_at_once_only_the_one_that_was_met_succeeds(batched):
    service = batched.service(OLD, clock=VirtualClock())
    first, second = batched_to(batched) + 100, batched_to(batched) + 200

    def another():
        assert batched.request(NEW, second, AnsweringClock(lambda: later(service))).later[-1].since == second

    with pytest.raises(ConfigError, match="another command has changed the rules of log 'out' meanwhile"):
        batched.request(NEW, first, AnsweringClock(another))
    service.close()


def test_rules_that_are_in_force_already_are_not_recorded_again_by_a_service(batched):
    service = batched.service(OLD, clock=VirtualClock())
    for _ in range(2):
        request = msgspec.json.encode(RulesRequest(NEW, None, VirtualClock().now() + MICROSECONDS))
        batched.output.put_metadata("batching/rules-request", request)
        later(service)
    service.close()
    assert len(read_rules(batched.output).later) == 1


def test_a_log_without_batches_takes_the_rules_of_the_settings(tmp_path):
    with open_store("memory://") as store:
        log = Batched(store, tmp_path)
        log.serve(OLD)  # leaves a state of no message
        with pytest.raises(ConfigError, match="no batches yet"):
            log.change(NEW)
        log.append(traffic(1, 50))
        log.serve(NEW)
        assert log.given() == log.expected(NEW)


def test_a_service_that_was_killed_before_it_saved_anything_has_put_down_its_rules(tmp_path):
    with open_store("memory://") as store:
        log = Batched(store, tmp_path)
        log.append(traffic(1, 300))
        service = log.service(OLD)
        service.step()
        service._writer.close()  # it was killed
        with pytest.raises(ConfigError, match=r"latest rules of log 'out' are .*window=50 "):
            log.service(NEW)
        rules = log.change(NEW)
        log.append(traffic(2, 300, now=latest(log)))
        log.serve(NEW)
        assert log.given() == log.expected(rules)


def test_without_its_state_and_a_record_the_old_rules_are_unknown(batched, tmp_path):
    (tmp_path / "state").unlink()
    batched.output.put_metadata("batching/rules", b"")  # an earlier release recorded only changed rules
    with pytest.raises(BatchServiceError, match="rules of log 'out' are unknown"):
        batched.change(NEW)
    batched.output.writer().close()  # was released
    batched.serve(OLD)
    batched.change(NEW)


def test_p7_a_state_that_is_older_than_the_output_continues_with_the_changed_rules(batched):
    old_state = batched.state.read()
    batched.append(traffic(2, 300, now=latest(batched)))
    batched.serve(OLD, commit_every=11)
    batched.state.write(old_state)  # as a service leaves it that was killed
    rules = batched.change(NEW)
    assert rules.later[-1].decided == batched_to(batched)
    batched.append(traffic(3, 300, now=latest(batched)))
    batched.serve(NEW)
    assert batched.given() == batched.expected(rules)


def test_a_record_that_is_not_valid_is_named(batched):
    batched.output.put_metadata("batching/rules", b"{}")
    with pytest.raises(SnapshotError, match="batching/rules of log 'out'"):
        RulesRecord(batched.output)
    with pytest.raises(SnapshotError, match="batching/rules"):
        batched.service(OLD)


@pytest.mark.crash
@pytest.mark.long
@pytest.mark.timeout(3600)
def test_p7_killed_services_before_and_after_a_change_lose_nothing_and_give_nothing_twice(tmp_path):
    url, draw = f"sqlite:///{tmp_path / 'log.db'}", random.Random(3)
    with open_store(url) as store:
        log, rules = Batched(store, tmp_path), None
        for given in (OLD, NEW):
            log.append(traffic(given.default.window, sized(quick=2000, ci=4000, long=30_000), now=latest(log)))
            command = [sys.executable, str(CHILD), url, str(tmp_path / "state"), str(given.default.window)]
            for _ in range(sized(quick=2, ci=5, long=50)):
                with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as child:
                    for _ in range(draw.randint(1, 12)):
                        assert child.stdout.readline() == "committed\n"
                    child.kill()
            if given == OLD:
                rules = log.change(NEW)  # in the middle of the messages
        assert subprocess.run(command, check=True, capture_output=True, text=True).stdout.endswith("done\n")
        assert rules.later[-1].since < latest(log)
        assert log.given() == log.expected(rules)


def latest(log):
    last = [message.received_at for batch in log.source.read(max(1, log.source.last_id)) for message in batch]
    return last[-1] if last else 0
