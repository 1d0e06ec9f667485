"""The batch service on a log: what comes out is what the batcher gives, whenever the process dies."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from collections import Counter
from pathlib import Path

import msgspec
import pytest

from millstream.batching import SnapshotError
from millstream.batching.errors import BatchServiceError
from millstream.batching.message_events import TICK_SOURCE
from millstream.batching.newest_batch import is_made_from
from millstream.batching.service import BatchService
from millstream.batching.ticks import BUSY_PAUSE, idle_log_ticker, writer_ticker
from millstream.core.clock import VirtualClock
from millstream.core.documents import FileDocument
from millstream.core.message import Message
from millstream.log import LogError, LogSpec, TrimmedError, open_store
from suite.sizes import sized
from support.batched_logs import RULES, expected, given, traffic

CHILD = Path(__file__).parent / "children" / "serve.py"


class Recorder:
    def __init__(self):
        self.counts, self.gauges, self.seen = Counter(), {}, []

    def count(self, name, amount=1, **labels):
        self.counts[name, *labels.values()] += amount

    def gauge(self, name, value, **labels):
        self.gauges[name] = value

    def observe_many(self, name, values, **labels):
        self.seen += [(name, value) for value in values]


@pytest.fixture
def store():
    with open_store("memory://") as store:
        yield store


def serve(store, path, **kwargs):
    return BatchService(
        store.log(LogSpec("in")), store.log(LogSpec("out")), RULES, FileDocument(path / "state"), **kwargs
    )


def test_ticks_are_given_between_writers_and_held_back_while_there_is_one(tmp_path):
    clock = VirtualClock()
    with open_store("memory://", clock=clock) as store:
        log = store.log(LogSpec("in"))
        tick = idle_log_ticker(log, clock)
        with log.writer() as writer:
            writer.append([Message(b"1", "a", "pump", clock.now())])
            assert not tick()
        assert not tick()  # not at once: whoever writes will hardly be gone the moment after
        clock.advance(BUSY_PAUSE)
        assert tick()
        assert [message.source for batch in log.read() for message in batch] == ["pump", TICK_SOURCE]


@pytest.mark.parametrize("sizes", [[1], [7, 2], [400]])
def test_p5_determinism_the_output_does_not_depend_on_when_the_service_looks(store, tmp_path, sizes):
    messages, service, turn = traffic(1, 400), serve(store, tmp_path), 0
    with store.log(LogSpec("in")).writer() as writer:
        while messages:
            size = sizes[turn % len(sizes)]
            writer.append(messages[:size])
            messages, turn = messages[size:], turn + 1
            service.step()
    service.close()
    assert given(store.log(LogSpec("out"))) == expected(store.log(LogSpec("in")))


def test_a_batch_is_a_message_under_its_source_identity_and_start(store, tmp_path):
    with store.log(LogSpec("in")).writer() as writer:
        writer.append([Message(b"1", "a", "pump", 110, 120), Message(b"2", "a", "pump", 200, 200)])
    service = serve(store, tmp_path)
    assert service.step() == 2
    service.close()
    (message,) = [message for batch in store.log(LogSpec("out")).read() for message in batch]
    body = json.loads(message.body)
    assert (message.key, message.source, message.event_time) == (body["batch"], "pump", 110)
    assert message.headers == (("kind", b"batch"),)
    assert body["events"] == [1]


def test_messages_with_times_that_no_batch_file_holds_are_refused(store, tmp_path):
    beyond = [(2**53, 130), (-(2**63), 140), (1, 2**53), (2**63 - 1, 2**63 - 1)]
    with store.log(LogSpec("in")).writer() as writer:
        writer.append([Message(b"1", "a", "pump", 110, 120), *(Message(b"2", "a", "pump", *times) for times in beyond)])
    service = serve(store, tmp_path)
    service.step()
    service.close()
    batches, rejects = given(store.log(LogSpec("out")))
    assert len(batches) == 1
    assert rejects == [(number, "time") for number in (2, 3, 4, 5)]


def test_ticks_close_quiet_sources_and_a_replay_needs_no_timer(tmp_path):
    clock = VirtualClock()
    start = clock.now()
    with open_store("memory://", clock=clock) as store, store.log(LogSpec("in")).writer() as writer:
        service = serve(store, tmp_path, ticks=writer_ticker(writer), clock=clock)
        writer.append([Message(b"1", "a", "pump", start)])
        service.step()
        assert not service.tick()
        service.run(lambda: store.log(LogSpec("out")).last_id == 1)
        assert clock.now() >= start + 71
        assert not service.tick()
        assert store.log(LogSpec("in")).last_id == 2
        service.close()
        replay = BatchService(
            store.log(LogSpec("in")), store.log(LogSpec("again")), RULES, FileDocument(tmp_path / "other")
        )
        replay.step()
        replay.close()
        assert given(store.log(LogSpec("again"))) == given(store.log(LogSpec("out"))) != ([], [])


def test_an_idle_log_without_ticks_shows_for_how_long_a_batch_is_overdue(tmp_path):
    clock, figures = VirtualClock(), Recorder()
    start = clock.now()
    with open_store("memory://", clock=clock) as store:
        with store.log(LogSpec("in")).writer() as writer:
            writer.append([Message(b"1", "a", "pump", start)])
        service = serve(store, tmp_path, clock=clock, metrics=figures)
        service.step()
        assert figures.gauges["batching_settle_lag_seconds"] == 0
        service.run(lambda: clock.now() >= start + 1_000_000_000)
        assert 900 < figures.gauges["batching_settle_lag_seconds"] <= 1_000
        service.close()


class AppendingClock(VirtualClock):
    """A clock that appends a message to *log* once so many seconds have passed."""

    def append_after(self, seconds: float, append) -> None:
        self.at, self.append = self.monotonic() + seconds, append

    def sleep(self, seconds: float) -> None:
        super().sleep(seconds)
        if self.append and self.monotonic() >= self.at:
            append, self.append = self.append, None
            append()


@pytest.mark.parametrize("hears", [True, False])
def test_an_idle_log_is_looked_at_four_times_a_second_and_at_once_after_an_append_here(tmp_path, hears):
    """Where the writer is in another process, the service does not hear of the append."""
    clock = AppendingClock()
    url, taken_at, looks = f"sqlite:///{tmp_path / 'logs.db'}", list[float](), 0
    with open_store(url, clock=clock) as store, open_store(url, clock=clock) as elsewhere:
        service = serve(store, tmp_path, clock=clock)
        writer = (store if hears else elsewhere).log(LogSpec("in")).writer()
        clock.append_after(10.0, lambda: writer.append([Message(b"1", "a", "pump", 110, 120)]))

        def stopped() -> bool:
            nonlocal looks
            looks += service.position == 0
            if service.position:
                taken_at.append(clock.monotonic())
            return bool(service.position)

        service.run(stopped)
        assert 35 <= looks <= 50
        assert taken_at[0] - 10.0 <= (0.15 if hears else 0.35), "a pause is behind each look"
        writer.close()
        service.close()


def test_p5_restart_goes_on_from_the_state_file_or_without_it_from_the_start(store, tmp_path):
    messages = traffic(2, 300)
    with store.log(LogSpec("in")).writer() as writer:
        for first in range(0, 300, 60):
            writer.append(messages[first : first + 60])
            service = serve(store, tmp_path)
            assert service.step() == (60 if first % 120 == 0 or first == 0 else first + 60)
            service.close()
            if first % 120 == 0:
                (tmp_path / "state").unlink()
            assert given(store.log(LogSpec("out"))) == expected(store.log(LogSpec("in")))


@pytest.mark.parametrize("seed", range(6))
def test_p6_a_service_reopened_with_commits_of_another_size_loses_no_reject_and_doubles_none(store, tmp_path, seed):
    """Sometimes it is closed, sometimes it dies with a state that is older than what it wrote, or with none."""
    draw, messages, commits = random.Random(seed), traffic(seed, 900), 0
    with store.log(LogSpec("in")).writer() as writer:
        while commits < 40:
            writer.append(messages[: (size := draw.randint(0, 60))])
            messages = messages[size:]
            size, save = draw.choice([1, 3, 17, 64, 1000]), draw.randint(1, 90)
            service = serve(store, tmp_path, commit_every=size, save_every=save)
            left = iter(range(enough := draw.randint(0, 9)))
            service.step(lambda left=left: next(left, None) is None)
            commits += enough
            if draw.random() < 0.5:
                service.close()
            else:
                service._writer.close()
            if draw.random() < 0.1:
                (tmp_path / "state").unlink(missing_ok=True)
        writer.append(messages)
        service = serve(store, tmp_path)
        service.step()
        service.close()
    found, refused = given(store.log(LogSpec("out")))
    assert (found, refused) == expected(store.log(LogSpec("in")))
    assert len(refused) > 50


@pytest.mark.smoke
@pytest.mark.crash
@pytest.mark.long
@pytest.mark.timeout(3600)
def test_p5_a_service_that_is_killed_loses_nothing_and_gives_nothing_twice(tmp_path, size):
    url, draw = f"sqlite:///{tmp_path / 'log.db'}", random.Random(3)
    with open_store(url) as store, store.log(LogSpec("in")).writer() as writer:
        writer.append(traffic(3, sized(ci=6000, long=60_000)))
    command = [sys.executable, str(CHILD), url, str(tmp_path / "state")]
    for _ in range(sized(quick=4, ci=8, long=100)):
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as child:
            for _ in range(draw.randint(1, 12)):
                assert child.stdout.readline() == "committed\n"
            child.kill()
    assert subprocess.run(command, check=True, capture_output=True, text=True).stdout.endswith("done\n")
    with open_store(url) as store:
        assert given(store.log(LogSpec("out"))) == expected(store.log(LogSpec("in")))
        assert store.log(LogSpec("out")).verify().ok


def test_p6_a_service_whose_append_failed_saves_nothing_that_the_output_does_not_know(store, tmp_path):
    messages, service = traffic(4, 200), serve(store, tmp_path, commit_every=40)
    with store.log(LogSpec("in")).writer() as writer:
        writer.append(messages[:100])
        service.step()
        service.save()
        writer.append(messages[100:])
    service._writer.close()
    with pytest.raises(LogError):
        service.step()
    service.close()
    after = serve(store, tmp_path)
    assert after.step() == 100
    after.close()
    assert given(store.log(LogSpec("out"))) == expected(store.log(LogSpec("in")))


def test_an_output_that_came_of_another_log_is_refused(store, tmp_path):
    with store.log(LogSpec("other")).writer() as writer:
        writer.append([Message(b"", "a", "p", time, time) for time in range(100)])
    first = BatchService(
        store.log(LogSpec("other")), store.log(LogSpec("out")), RULES, FileDocument(tmp_path / "first")
    )
    first.step()
    first.close()
    with pytest.raises(BatchServiceError, match=r"up to message 100, but .* now ends at 0: .*a power loss"):
        serve(store, tmp_path)


def test_p6_without_its_state_an_output_takes_no_batches_of_another_log(store, tmp_path):
    """The sequence of the output says nothing of the log: messages up to it would be dropped as repeated."""
    for name, seed in (("in", 1), ("other", 2)):
        with store.log(LogSpec(name)).writer() as writer:
            writer.append(traffic(seed, 300))
    state, output = FileDocument(tmp_path / "state"), store.log(LogSpec("out"))

    def batch(name):
        service = BatchService(store.log(LogSpec(name)), output, RULES, state)
        service.step()
        service.close()

    batch("in")
    before = given(output)
    with pytest.raises(SnapshotError, match="batch 'in' into 'out', or choose a new output log"):
        batch("other")
    state.path.unlink()
    with pytest.raises(BatchServiceError, match="'out' has batches of a log other than 'other'"):
        batch("other")
    assert not state.path.exists()
    batch("in")
    assert given(output) == before == expected(store.log(LogSpec("in")))


def test_the_newest_batch_is_found_behind_rejected_messages_and_reads_little(store):
    source, output = store.log(LogSpec("in")), store.log(LogSpec("out"))
    with source.writer() as writer:
        writer.append([Message(b"1", "a", "pump", 110, 120), Message(b"2", "b", "pump", 115, 125)])

    def body(**changed):
        return msgspec.json.encode(
            {"batch": "b", "source": "pump", "start": 110, "end": 115, "events": [1, 2]} | changed
        )

    with output.writer() as writer:
        assert is_made_from(output, source), "no batch"
        writer.append([Message(body(source="fan")), Message(body())])
        assert is_made_from(output, source)
        writer.append([Message(b'{"rejected":3,"reason":"late"}')] * 40)
        assert is_made_from(output, source), "the newest batch is behind 40 other messages"
        for changed in ({"start": 111}, {"end": 114}, {"source": "fan"}, {"events": [1, 3]}):
            writer.append([Message(body(**changed))])
            assert not is_made_from(output, source), changed
        source.trim(3)
        assert not is_made_from(output, source), "message 3 is not in the log"
        writer.append([Message(body(source="fan"))])
        assert is_made_from(output, source), "its messages were trimmed"


def test_a_log_that_goes_back_in_time_is_refused_by_name(store, tmp_path):
    with store.log(LogSpec("in")).writer() as writer:
        writer.append([Message(b"1", "a", "pump", 110, 120), Message(b"2", "a", "pump", 110, 119)])
    service = serve(store, tmp_path)
    with pytest.raises(BatchServiceError, match=r"message 2 of log 'in' has the receive time 1970.*119Z.*pipeline"):
        service.step()
    service.close()


def test_p6_a_receive_time_that_no_calendar_has_is_named_by_its_number(store, tmp_path):
    with store.log(LogSpec("in")).writer() as writer:
        writer.append([Message(b"1", "a", "pump", 110, 2**62), Message(b"2", "a", "pump", 110, 119)])
    service = serve(store, tmp_path)
    expected = (
        rf"message 2 .*119Z, earlier than {2**62}, that of the previous message\. .*batch such a log, for example"
    )
    with pytest.raises(BatchServiceError, match=expected):
        service.step()
    service.close()


@pytest.mark.parametrize("spoil", ["other logs", "damage"])
def test_a_state_file_that_is_of_no_use_is_refused(store, tmp_path, spoil):
    serve(store, tmp_path).close()
    if spoil == "damage":
        (tmp_path / "state").write_bytes(b"\x00")
    output = store.log(LogSpec("elsewhere" if spoil == "other logs" else "out"))
    with pytest.raises(SnapshotError, match="state"):
        BatchService(store.log(LogSpec("in")), output, RULES, FileDocument(tmp_path / "state"))


def test_metrics_tell_rejects_by_reason_delays_open_sources_and_lag(store, tmp_path):
    with store.log(LogSpec("in")).writer() as writer:
        writer.append(
            [Message(b"1", "a", "p", 110, 120), Message(b"1", "a", "q", 0, 120), Message(b"", "a", "q", 300, 300)]
        )
    clock, metrics = VirtualClock(start=372), Recorder()
    service = serve(store, tmp_path, clock=clock, metrics=metrics)
    service.step()
    service.close()
    assert metrics.counts == {("batching_rejects_total", "late"): 1, ("batching_batches_total", "window", "batch"): 1}
    assert metrics.seen == [("batching_delay_seconds", delay / 1e6) for delay in (10, 120, 0)]
    assert metrics.gauges == {"batching_open_sources": 1, "batching_settle_lag_seconds": 1e-6}


def test_a_service_begins_where_a_trimmed_log_begins_and_gives_the_same_after_a_crash(tmp_path):
    messages = traffic(5, 400)
    with open_store(f"sqlite:///{tmp_path}/log.db") as store:
        source, output = store.log(LogSpec("in")), store.log(LogSpec("out"))
        with source.writer() as writer:
            writer.append(messages[:200])
            source.trim(101)
            service = BatchService(source, output, RULES, FileDocument(tmp_path / "state"), commit_every=7)
            service.step()
            service._writer.close()  # a crash: the state that was saved is the one of the beginning
            writer.append(messages[200:])
            service = BatchService(source, output, RULES, FileDocument(tmp_path / "state"), commit_every=7)
            service.step()
            service.close()
        assert given(output) == expected(source)


def test_a_service_whose_state_is_gone_and_whose_log_was_trimmed_is_refused(tmp_path):
    with open_store(f"sqlite:///{tmp_path}/log.db") as store:
        source, output = store.log(LogSpec("in")), store.log(LogSpec("out"))
        with source.writer() as writer:
            writer.append(traffic(6, 300))
        service = BatchService(source, output, RULES, FileDocument(tmp_path / "state"))
        service.step()
        service.close()
        (tmp_path / "state").unlink()
        source.trim(200)
        with pytest.raises(BatchServiceError, match="trimmed and begins at message 200"):
            BatchService(source, output, RULES, FileDocument(tmp_path / "state"))
        output.writer().close()


def test_a_service_whose_log_was_trimmed_beyond_where_it_stood_is_told_so(tmp_path):
    with open_store(f"sqlite:///{tmp_path}/log.db") as store:
        source, output = store.log(LogSpec("in")), store.log(LogSpec("out"))
        with source.writer() as writer:
            writer.append(traffic(7, 100))
            service = BatchService(source, output, RULES, FileDocument(tmp_path / "state"))
            service.step()
            writer.append(traffic(7, 100)[:50])
        source.trim(120)
        with pytest.raises(TrimmedError, match="ids 101 to 119"):
            service.step()
        service.close()


def test_the_state_of_a_service_at_work_is_as_old_as_a_minute_and_no_older(tmp_path):
    """So that the service goes on after a kill where a rule has trimmed what it had taken long ago."""
    clock = AppendingClock()
    with open_store(f"sqlite:///{tmp_path}/log.db", clock=clock) as store:
        source, output, state = store.log(LogSpec("in")), store.log(LogSpec("out")), FileDocument(tmp_path / "state")
        with source.writer() as writer:
            messages = traffic(7, 5)
            for message in messages[:3]:
                writer.append([message])
            killed, begin = BatchService(source, output, RULES, state, clock=clock), clock.monotonic()
            clock.append_after(10.0, lambda: writer.append(messages[3:]))
            killed.run(lambda: clock.monotonic() > begin + 70)
        killed._writer.close()
        source.trim(5)
        service = BatchService(source, output, RULES, state, clock=clock)
        assert (service.position, service.step()) == (5, 0)
        service.close()


def test_p6_a_service_that_was_closed_saves_nothing_over_what_its_successor_saved(store, tmp_path):
    store.log(LogSpec("in")).writer("w").append(traffic(4, 20))
    first = serve(store, tmp_path)
    first.close()
    second = serve(store, tmp_path)
    second.step()
    second.close()
    kept = (tmp_path / "state").read_bytes()
    first.close()
    assert (tmp_path / "state").read_bytes() == kept
