"""What a confirmed message survives is chosen where files are opened, stated, and no more is lost than was said."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from millstream.core.clock import SystemClock
from millstream.log import LogInputError, LogSpec, LogStore, open_store
from millstream.log.backends.durability import split_durability
from millstream.log.backends.segments import stream as stream_module
from millstream.log.backends.segments.backend import SegmentsBackend
from millstream.log.backends.segments.files import sync
from millstream.log.backends.segments.format import CommittedEnd, decode_end, encode_end
from millstream.log.backends.segments.lease import LeaseRecord, write_lease
from millstream.log.backends.sqlite.backend import SqliteBackend
from suite.sizes import examples

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
