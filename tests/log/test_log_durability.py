"""What a confirmed message survives is chosen where files are opened, stated, and no more is lost than was said."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from millstream.core.clock import SystemClock
from millstream.log import DamagedLogError, IdRange, Log, LogInputError, LogSpec, LogStore, Tiering, open_store
from millstream.log.backends.durability import FileDurability, split_durability
from millstream.log.backends.segments import backend as backend_module
from millstream.log.backends.segments import states as states_module
from millstream.log.backends.segments import stream as stream_module
from millstream.log.backends.segments.backend import SegmentsBackend
from millstream.log.backends.segments.files import sync
from millstream.log.backends.segments.format import CommittedEnd, decode_end, encode_end
from millstream.log.backends.segments.lease import LeaseRecord, write_lease
from millstream.log.backends.sqlite.backend import SqliteBackend
from millstream.log.consumer_positions import ConsumerPosition, consumer_key, encode_position
from suite.sizes import examples
from support.segment_folders import reboot
from support.tiered_logs import URL, Cloud, bodies, fill, ids_of

SPEC = LogSpec("weather", compression="plain")


@pytest.mark.parametrize("scheme", ["sqlite", "segments"])
def test_the_durability_of_files_is_chosen_stated_and_part_of_the_url(scheme: str, tmp_path: Path) -> None:
    url = f"{scheme}:///{tmp_path}/store"
    for options, stated in (({}, "fsync"), ({"durability": "fsync"}, "fsync"), ({"durability": "os"}, "os")):
        with open_store(url, **options) as store:  # type: ignore[arg-type]
            assert store.log(SPEC).info().durability == stated
            assert store.url == url + ("?durability=os" if stated == "os" else "")
    with open_store(f"{url}?durability=os") as store:
        assert store.log(SPEC, create=False).info().durability == "os"


@pytest.mark.parametrize(
    ("url", "durability"),
    [
        ("sqlite:///x/log.db?durability=none", None),
        ("sqlite:///x/log.db", "memory"),
        ("segments:///x/log", "memory"),
        ("memory://", "os"),
        ("mysql://user@host/database", "os"),
        ("postgresql://user@host/database", "fsync"),
    ],
)
def test_a_durability_that_a_store_cannot_have_is_refused(url: str, durability: str | None) -> None:
    with pytest.raises(LogInputError, match="durab"):
        open_store(url, durability=durability)  # type: ignore[arg-type]


def test_memory_is_durable_by_nothing() -> None:
    with open_store("memory://", durability="memory") as store:
        assert store.log(SPEC).info().durability == "memory"


def test_a_path_may_have_question_marks_of_its_own() -> None:
    assert split_durability("/a?b?durability=os") == ("/a?b", "os")
    assert split_durability("/a?durability=os/b") == ("/a?durability=os/b", None)
    assert split_durability("/a?b=c") == ("/a?b=c", None)


def test_sqlite_leaves_commits_to_the_system(tmp_path: Path) -> None:
    backend = SqliteBackend(tmp_path / "log.db", SystemClock(), durability="os")
    assert backend._writer.execute("PRAGMA synchronous").fetchone() == (1,), "1 is NORMAL: whole after a power loss"
    backend.close()


def test_segments_leave_commits_to_the_system_until_the_lease_says_that_they_are_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[int] = []
    monkeypatch.setattr(stream_module, "sync", lambda handle: (synced.append(handle), sync(handle)))
    clock = SystemClock()
    with LogStore(SegmentsBackend(tmp_path, clock, durability="os"), clock) as store:
        writer = store.log(SPEC).writer()
        before = len(synced)
        for _ in range(20):
            writer.append([b"x"])
        assert len(synced) == before
        writer._renew()
        assert len(synced) == before + 1
        writer.append([b"x"])
        writer.close()
        assert len(synced) == before + 2


def opened(folder: Path, durability: FileDurability, cloud: Cloud | None = None) -> LogStore:
    """The store in *folder* as another process would see it."""
    clock = SystemClock()
    backend = SegmentsBackend(folder, clock, durability=durability)
    return LogStore(backend, clock, open_objects=cloud.open if cloud is not None else None)


@pytest.mark.parametrize(
    "write",
    [
        lambda log: log.trim(2),
        lambda log: log.set_pointer("worker", 2),
        lambda log: log.put_metadata("position", b"2"),
        lambda log: log.replace_metadata("position", b"2", version=0),
    ],
)
def test_a_state_is_written_when_the_messages_that_it_may_name_are_on_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, write: Callable[[Log], object]
) -> None:
    synced: list[str] = []

    def noted(handle: int) -> None:
        synced.append(Path(f"/proc/self/fd/{handle}").readlink().suffix)
        sync(handle)

    for module in (stream_module, states_module):
        monkeypatch.setattr(module, "sync", noted)
    with opened(tmp_path, "os") as store, store.log(SPEC).writer() as writer:
        writer.append([b"x"] * 2)
        synced.clear()
        write(store.log(SPEC))
        assert synced == [".seg", ""]


def test_a_writer_first_syncs_what_a_killed_one_left_to_the_system(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its lease says that all of this is on the disk."""
    with opened(tmp_path, "os") as killed, opened(tmp_path, "fsync") as store:
        killed.log(SPEC).writer().append([b"x"])
        write_lease(tmp_path / "logs" / SPEC.name / "lease", LeaseRecord(1, b"", 0, 0))
        steps: list[str] = []
        monkeypatch.setattr(stream_module, "sync", lambda handle: (steps.append("sync"), sync(handle)))
        monkeypatch.setattr(backend_module, "write_lease", lambda *of: (steps.append("lease"), write_lease(*of)))
        store.log(SPEC).writer()
        assert steps == ["sync", "lease"]


def trimmed(log: Log) -> None:
    log.trim(16)


def moved(log: Log) -> None:
    log.set_tiering(Tiering(URL, segment_bytes=100))
    log.move_blocks()


@pytest.mark.parametrize("is_taken_up", [False, True])
@pytest.mark.parametrize(("mark", "last_id", "kept"), [(trimmed, 15, []), (moved, 20, list(range(1, 21)))])
def test_a_writer_goes_on_after_the_marks_where_a_power_loss_took_messages_below_them(
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    mark: Callable[[Log], None],
    last_id: int,
    kept: list[int],
    is_taken_up: bool,
) -> None:
    """Earlier releases synced marks before messages. Ids 11 to 20 are lost, and the log may have been opened since."""
    place, cloud = tmp_path / "logs" / SPEC.name, Cloud()
    with opened(tmp_path, "os", cloud) as store:
        log = fill(store.log(SPEC), 10)
        end, size = (place / "end").read_bytes(), max(place.glob("*.seg")).stat().st_size
        lease = (place / "lease").read_bytes()
        fill(log, 10)
        mark(log)
    (segment,) = place.glob("*.seg")
    segment.write_bytes(segment.read_bytes()[:size])
    (place / "lease").write_bytes(lease)
    (place / "end").write_bytes(end)
    if not is_taken_up:
        reboot(tmp_path)
    with opened(tmp_path, "fsync", cloud) as store, pytest.raises(DamagedLogError, match="should end at id 10"):
        store.log(SPEC).writer()
    with opened(tmp_path, "os", cloud) as store, store.log(SPEC).writer() as writer:
        assert writer.last_id == last_id
        assert f"ends at id 10, but messages up to id {last_id} were trimmed or moved to a tier" in caplog.text
        assert writer.append(bodies(last_id + 1, last_id + 2)) == IdRange(last_id + 1, last_id + 2)
    with opened(tmp_path, "fsync", cloud) as store:
        log = store.log(SPEC)
        with log.writer() as writer:
            writer.append(bodies(last_id + 3, last_id + 3))
        assert ids_of(log) == [*kept, *range(last_id + 1, last_id + 4)]
        assert log.verify(deep=True).ok
        log.trim(last_id + 2)
        assert not segment.exists()
        assert ids_of(log) == [last_id + 2, last_id + 3]


COMMITS, SETTLED = 12, 5


@examples(ci=25, long=500)
@given(begin=st.floats(0, 1), length=st.floats(0, 1), cut=st.booleans(), segment_bytes=st.sampled_from([1500, 1 << 20]))
@example(begin=0.0, length=1.0, cut=False, segment_bytes=1 << 20)
@example(begin=0.2, length=0.1, cut=False, segment_bytes=1 << 20)
def test_a_power_loss_takes_nothing_that_was_settled_and_leaves_the_rest_whole(
    begin: float, length: float, cut: bool, segment_bytes: int
) -> None:
    """Any bytes since the last renewal may never have been written, and bytes after them may."""
    with tempfile.TemporaryDirectory(prefix="millstream-power-") as folder:
        clock, place = SystemClock(), Path(folder) / "logs" / SPEC.name
        store = LogStore(SegmentsBackend(Path(folder), clock, segment_bytes=segment_bytes, durability="os"), clock)
        writer = store.log(SPEC).writer()
        settled = (place / "end").read_bytes()
        for turn in range(COMMITS):
            writer.append([b"%d" % turn * 40])
            if turn + 1 == SETTLED:
                writer._renew()
                settled = (place / "end").read_bytes()
        lose(place, decode_end(settled), begin, length, cut)
        with LogStore(SegmentsBackend(Path(folder), clock, durability="os"), clock) as again:
            with again.log(SPEC).writer() as other:
                bodies = [message.body for batch in again.log(SPEC).read() for message in batch]
                assert bodies == [b"%d" % turn * 40 for turn in range(len(bodies))]
                assert len(bodies) >= SETTLED
                other.append([b"next"])
            assert again.log(SPEC).verify().ok
        store._backend.close()


def lose(place: Path, settled: CommittedEnd, begin: float, length: float, cut: bool) -> None:
    """The machine is started anew; of the last segment a part that was not synced is gone."""
    last = max(place.glob("*.seg"))
    data = bytearray(last.read_bytes())
    start = settled.offset if int(last.stem) == settled.segment else 400
    room = max(len(data) - start, 0)
    first = min(start + int(begin * room), len(data))
    stop = min(first + int(length * room) + 1, len(data))
    data[first:stop] = b"" if cut and stop == len(data) else bytes(stop - first)
    last.write_bytes(data)
    end = decode_end((place / "end").read_bytes())
    (place / "end").write_bytes(
        encode_end(
            CommittedEnd(
                boot=1, segment=end.segment, offset=end.offset, last_id=end.last_id, received_at=end.received_at
            )
        )
    )
    write_lease(place / "lease", LeaseRecord(1, b"", 0, SETTLED))


def test_a_consumer_gets_messages_with_the_ids_of_lost_ones(caplog: pytest.LogCaptureFixture) -> None:
    with open_store("memory://") as store:
        log = store.log(SPEC)
        with log.writer() as writer:
            writer.append([b"1", b"2", b"3"])
            lost = ConsumerPosition(1, (IdRange(3, 5),))  # as after a power loss, or a restored backup
            log._backend.put_state(SPEC.name, consumer_key("job"), encode_position(lost), version=0)
            with log.reader("job") as reader:
                assert [m.body for batch in reader.batches() for m in batch] == [b"2"]
                writer.append([b"4", b"5", b"6"])
                assert [m.body for batch in reader.batches() for m in batch] == [b"4", b"5", b"6"]
                reader.ack([2, 4])
            assert "up to id 5, but the log ends at id 3" in caplog.text
            caplog.clear()
            with log.reader("job") as reader:
                assert [m.body for batch in reader.batches() for m in batch] == [b"5", b"6"]
            assert not caplog.text
