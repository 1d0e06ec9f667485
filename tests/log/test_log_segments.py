"""What is particular to logs in segment files: layout, sealing, fencing, states, opening."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import struct
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from crc32c import crc32c

from millstream.core.clock import Clock, SystemClock, VirtualClock
from millstream.log import (
    DamagedLogError,
    FencedError,
    IdRange,
    Log,
    LogError,
    LogNotFoundError,
    LogSpec,
    LogStore,
    StorageBusyError,
    StorageError,
    StorageFullError,
    StorageReadOnlyError,
    WriterFailedError,
    open_store,
)
from millstream.log.backend import Commit
from millstream.log.backends.segments import backend as backend_module
from millstream.log.backends.segments import files as files_module
from millstream.log.backends.segments import states as states_module
from millstream.log.backends.segments import stream as stream_module
from millstream.log.backends.segments.backend import SegmentsBackend
from millstream.log.backends.segments.files import read_at
from millstream.log.backends.segments.format import CommittedEnd
from millstream.log.backends.segments.lease import LeaseRecord, write_lease
from millstream.testing.log_backends import NAME, block
from millstream.testing.waiting import join, until
from support.segment_folders import (
    SPEC,
    bodies,
    filled,
    flip,
    opened,
    place,
    segments,
)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "store"


@pytest.fixture
def log(folder: Path) -> Iterator[Log]:
    with filled(folder) as log:
        yield log


EXPECTED = [b"%d" % n for n in range(1, 101)]


def test_segments_are_sealed_and_read_back_through_their_footers(log: Log, folder: Path) -> None:
    assert len(segments(folder)) >= 3
    with opened(folder) as store:
        again = store.log(SPEC, create=False)
        assert bodies(again) == EXPECTED
        assert list(again.block_ranges()) == list(log.block_ranges())
        assert again.info() == log.info()
        assert again.verify() == log.verify()
        assert again.verify().ok


def test_a_segment_is_named_by_its_first_id_and_every_block_lies_in_it_as_it_is(log: Log, folder: Path) -> None:
    for path in segments(folder):
        first = int(path.stem)
        ranges = [block for block in log.block_ranges() if block.first_id >= first]
        assert ranges[0].first_id == first
    (block,) = log._backend.read(SPEC.name, 11, 11, max_bytes=1)
    assert any(block.data in path.read_bytes() for path in segments(folder))


def test_the_files_are_laid_out_as_the_format_document_says(log: Log, folder: Path) -> None:
    """docs/formats/segments.md, read by hand: the offsets of the tables there, and nothing of our code."""
    first, second, *_ = segments(folder)
    data = first.read_bytes()
    (snapshot,) = struct.unpack_from("<I", data, 12)
    assert (data[:4], struct.unpack_from("<HH", data, 4)) == (b"MSSG", (1, 0))
    assert struct.unpack_from("<Q", data, 24) == (1,)
    assert json.loads(data[48 : 48 + snapshot]) == {}
    commit = 48 + snapshot
    name_bytes, checksum, blocks = struct.unpack_from("<HII", data, commit + 6)
    assert (data[commit : commit + 4], blocks) == (b"MSCM", 1)
    assert struct.unpack_from("<QQQ", data, commit + 16) == (1, 0, 10), "epoch, id before, last id"
    assert struct.unpack_from("<Q", data, commit + 48) == (1,), "sequence"
    assert data[commit + 64 : commit + 64 + name_bytes] == b"importer"
    block = commit + 64 + name_bytes + -name_bytes % 8
    assert crc32c(data[commit + 12 : block], crc32c(data[commit : commit + 8])) == checksum
    assert data[block : block + 4] == b"MSBK"
    mark, _, footer = struct.unpack("<4sIQ", data[-16:])
    (count,) = struct.unpack_from("<I", data, len(data) - footer + 12)
    assert (mark, data[-footer : 4 - footer], footer) == (b"MSFT", b"MSFT", 72 + 64 * count + 16)
    entry = struct.unpack_from("<QQQQ", data, len(data) - footer + 72)
    assert entry == (1, 10, block, next(iter(log.block_ranges())).bytes)
    (snapshot,) = struct.unpack_from("<I", second.read_bytes(), 12)
    sequence = (int(second.stem) - 1) // 10
    assert json.loads(second.read_bytes()[48 : 48 + snapshot]) == {"importer": [sequence, str(sequence)]}
    end = (place(folder) / "end").read_bytes()
    assert (end[:4], len(end)) == (b"MSND", 56)
    assert struct.unpack_from("<QQQ", end, 24) == (
        int(segments(folder)[-1].stem),
        segments(folder)[-1].stat().st_size,
        100,
    )
    checksum, line = (place(folder) / "lease").read_bytes().rstrip().split(b" ", 1)
    assert int(checksum, 16) == crc32c(line)
    assert json.loads(line).keys() == {"epoch", "holder", "until", "last_id"}


@pytest.mark.parametrize("error", [errno.EIO, errno.ENOSPC])
def test_a_failing_fsync_stops_the_writer_and_is_never_tried_again(
    folder: Path, monkeypatch: pytest.MonkeyPatch, error: int
) -> None:
    calls: list[int] = []

    def failing(handle: int) -> None:
        calls.append(handle)
        raise OSError(error, os.strerror(error))

    with opened(folder) as store:
        log = store.log(SPEC)
        with log.writer() as writer:
            writer.append([b"before"])
        broken = log.writer()
        with monkeypatch.context() as patch:
            patch.setattr(stream_module, "sync", failing)
            for _ in range(3):
                with pytest.raises(WriterFailedError, match=os.strerror(error)):
                    broken.append([b"lost"])
        assert len(calls) == 1
        broken.close()
        with log.writer() as writer:
            writer.append([b"after"])
        assert bodies(log) == [b"before", b"after"]
        assert log.verify().ok


def test_p10_one_writer_a_stale_one_cannot_write_between_two_commits_of_the_newer(folder: Path) -> None:
    with opened(folder) as store, opened(folder) as other:
        stale = store.log(SPEC).writer()
        stale.append([b"old"])
        store.log(SPEC)._backend.release_lease(SPEC.name, epoch=1)
        newer = other.log(SPEC).writer()
        for _ in range(20):
            newer.append([b"new"] * 10)
        with pytest.raises(LogError):
            stale.append([b"late"])
        assert bodies(store.log(SPEC)) == [b"old", *[b"new"] * 200]
        newer.close()
        stale.close()


def test_a_commit_reads_lease_and_end_again_only_when_they_may_have_changed(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reads: list[str] = []

    def noted(handle: int, offset: int, size: int) -> bytes:
        reads.append(Path(f"/proc/self/fd/{handle}").readlink().name)
        return read_at(handle, offset, size)

    monkeypatch.setattr(files_module, "read_at", noted)
    with opened(folder) as store:
        writer = store.log(SPEC).writer()
        writer.append([b"first"])
        reads.clear()
        writer.append([b"second"])
        assert not reads
        write_lease(place(folder) / "lease", LeaseRecord(2, b"", 0, 2))
        with pytest.raises(FencedError, match="another writer has taken over"):
            writer.append([b"late"])
        assert bodies(store.log(SPEC)) == [b"first", b"second"]


def test_a_process_that_follows_goes_from_segment_to_segment(folder: Path) -> None:
    with opened(folder) as store, opened(folder, read_only=True) as other, store.log(SPEC).writer("p") as writer:
        watched = other.log(SPEC, create=False)
        for turn in range(40):
            writer.append([b"%d" % turn] * 5, sequence=turn + 1)
            assert watched.last_id == 5 * (turn + 1)
            assert bodies(watched, 5 * turn + 1) == [b"%d" % turn] * 5
            assert watched._backend.get_state(SPEC.name, "producer/p").version == turn + 1
    assert len(segments(folder)) > 5


def test_rolling_that_was_interrupted_is_taken_up(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The writer dies when the footer is written, and when the next segment is made but not yet announced."""
    for moment in ("write_durably", "_announce_new"):
        place_ = folder / moment
        with opened(place_) as store:
            writer = store.log(SPEC).writer("p")
            turn = 0
            with monkeypatch.context() as patch, pytest.raises(WriterFailedError):
                if moment == "write_durably":
                    patch.setattr(stream_module, "write_durably", raising)
                else:
                    patch.setattr(stream_module.SegmentStream, "_roll", rolls_and_dies)
                while True:
                    writer.append([b"%d" % turn] * 10, sequence=turn + 1)
                    turn += 1
            writer.close()
        with opened(place_) as store, store.log(SPEC).writer("p") as writer:
            assert (writer.last_id, writer.sequence) == (10 * turn, turn)
            writer.append([b"next"])
            assert bodies(store.log(SPEC))[-1] == b"next"
            assert len(bodies(store.log(SPEC))) == 10 * turn + 1
            assert store.log(SPEC).verify().ok


def raising(*_: object) -> None:
    raise OSError(errno.EIO, "it dies here")


_roll = stream_module.SegmentStream._roll


def rolls_and_dies(stream: stream_module.SegmentStream, end: CommittedEnd, handle: int) -> CommittedEnd:
    announce = stream._announce
    stream._announce = raising  # type: ignore[method-assign,assignment]
    try:
        return _roll(stream, end, handle)
    finally:
        stream._announce = announce  # type: ignore[method-assign]


def test_states_survive_a_torn_write_and_are_written_anew_when_the_journal_grows(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(states_module, "COMPACT_BYTES", 1000)
    with opened(folder) as store, opened(folder) as other:
        backend, theirs = store.log(SPEC)._backend, other.log(SPEC)._backend
        for turn in range(200):
            assert backend.put_state(SPEC.name, "consumer/a", b"%d" % turn, version=turn)
            assert theirs.get_state(SPEC.name, "consumer/a").value == b"%d" % turn
        journal = place(folder) / "states"
        assert journal.stat().st_size < 2000
        with journal.open("ab") as file:
            file.write(b"\x40\x00\x00\x00torn")
        assert theirs.put_state(SPEC.name, "consumer/a", b"after", version=200)
        assert backend.get_state(SPEC.name, "consumer/a").value == b"after"


def test_a_long_torn_write_of_a_state_costs_time_in_proportion_to_its_length(folder: Path) -> None:
    with opened(folder) as store:
        store.log(SPEC)._backend.put_state(SPEC.name, "k", b"value", version=0)
    with (place(folder) / "states").open("ab") as file:
        file.write(struct.pack("<II", 1 << 20, 1) + b"\xff" * (1 << 19))
    begin = time.process_time()
    with opened(folder) as store:
        assert store.log(SPEC)._backend.get_state(SPEC.name, "k").value == b"value"
    assert time.process_time() - begin < 5, "quadratic, it takes more than 10 s"


def test_a_damaged_journal_of_states_is_told(folder: Path) -> None:
    with opened(folder) as store:
        for turn in range(5):
            store.log(SPEC)._backend.put_state(SPEC.name, "k", b"value", version=turn)
    flip(place(folder) / "states", 60)
    with opened(folder) as store, pytest.raises(DamagedLogError, match="states is damaged"):
        store.log(SPEC).info()


def test_a_url_opens_the_same_folder_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with open_store("segments:///a folder/ü%20#?") as store:
        store.log(SPEC)
        assert (tmp_path / "a folder" / "ü%20#?" / "store.json").exists()
        with open_store(store.url) as again:
            assert list(again.logs()) == ["weather"]


def test_a_store_that_is_not_there_is_not_made_for_reading(folder: Path) -> None:
    for options in ({"read_only": True}, {"create": False}):
        with pytest.raises(LogNotFoundError, match="no log store at"):
            open_store(f"segments:///{folder}", **options)
    assert not folder.exists()


def test_read_only_reads_and_refuses_to_write(log: Log, folder: Path) -> None:
    with opened(folder, read_only=True) as store:
        readable = store.log(SPEC, create=False)
        assert bodies(readable) == EXPECTED
        with pytest.raises(StorageReadOnlyError):
            readable.writer()
        with pytest.raises(StorageReadOnlyError):
            store.log(LogSpec("new"))


def test_a_folder_of_something_else_or_of_a_newer_format_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "theirs").write_text("mine")
    with pytest.raises(StorageError, match="files of another program"):
        open_store(f"segments:///{tmp_path}")
    (tmp_path / "store.json").write_text('{"format":"millstream segments","version":3}')
    with pytest.raises(StorageError, match=r"of format 3, but this release reads format 2: upgrade Millstream"):
        open_store(f"segments:///{tmp_path}")


def test_a_closed_store_says_so(folder: Path) -> None:
    store = open_store(f"segments:///{folder}")
    log = store.log(SPEC)
    store.close()
    store.close()
    with pytest.raises(StorageError, match="closed"):
        log.info()


def test_a_log_whose_lease_is_gone_is_not_begun_anew(log: Log, folder: Path) -> None:
    (place(folder) / "lease").unlink()
    with opened(folder) as store, pytest.raises(DamagedLogError, match="lease is missing"):
        store.log(SPEC)


def test_a_journal_of_states_that_has_the_inode_of_a_former_one_is_read_anew(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(states_module, "COMPACT_BYTES", 1000)
    with opened(folder) as store, opened(folder) as other:
        backend, theirs = store.log(SPEC)._backend, other.log(SPEC)._backend
        for consumer in ("a", "b"):
            assert theirs.put_state(SPEC.name, f"consumer/{consumer}", b"000", version=0)
        assert backend.get_state(SPEC.name, "consumer/a").value == b"000"
        journal, former = place(folder) / "states", folder / "former"
        former.hardlink_to(journal)
        version = 1
        while journal.stat().st_ino == former.stat().st_ino:
            assert theirs.put_state(SPEC.name, "consumer/a", b"%03d" % version, version=version)
            version += 1
        former.write_bytes(journal.read_bytes())
        former.replace(journal)
        assert backend.get_state(SPEC.name, "consumer/a").value == b"%03d" % (version - 1)
        assert backend.put_state(SPEC.name, "consumer/b", b"001", version=1)
        assert theirs.states(SPEC.name, "consumer/") == backend.states(SPEC.name, "consumer/")
        assert sorted(theirs.states(SPEC.name, "")) == ["consumer/a", "consumer/b", "kind"]


def test_a_state_that_was_written_in_the_place_of_one_that_failed_is_seen(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with opened(folder) as store, opened(folder) as other:
        backend, theirs = store.log(SPEC)._backend, other.log(SPEC)._backend
        backend.get_state(SPEC.name, "k")

        def failing(_: int) -> None:
            assert backend.get_state(SPEC.name, "k").value == b"lost"
            raise OSError(errno.EIO, "the disk fails")

        with monkeypatch.context() as patch, pytest.raises(StorageError):
            patch.setattr(states_module, "sync", failing)
            theirs.put_state(SPEC.name, "k", b"lost", version=0)
        assert theirs.put_state(SPEC.name, "k", b"kept", version=0)
        os.utime(place(folder) / "states")  # a file system may count time in steps of some milliseconds
        assert backend.get_state(SPEC.name, "k").value == b"kept"


def test_a_log_is_opened_while_another_process_writes_its_states(folder: Path) -> None:
    with filled(folder), (place(folder) / "states.lock").open("rb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        clock = VirtualClock()
        with LogStore(SegmentsBackend(folder, clock), clock) as store:
            assert store.kinds() == {"weather": "application"}


def test_other_logs_are_used_while_a_log_is_opened(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with opened(folder) as store:
        store.log(LogSpec("first"))
        store.log(LogSpec("second"))
    with opened(folder) as store, ThreadPoolExecutor(1) as thread:
        first = store.log(LogSpec("first"), create=False)

        def use_first(folder: Path, clock: Clock) -> states_module.StateJournal:
            assert thread.submit(lambda: first.last_id).result(timeout=30) == 0
            return states_module.StateJournal(folder, clock)

        monkeypatch.setattr(backend_module, "StateJournal", use_first)
        assert store.log(LogSpec("second"), create=False).last_id == 0


def test_a_renewal_waits_a_short_time_for_a_lock_that_another_process_keeps(folder: Path) -> None:
    clock = VirtualClock()
    with LogStore(SegmentsBackend(folder, clock), clock) as store:
        writer = store.log(SPEC).writer()
        store._renewals.close()  # they would wait beside it, and move this clock
        with (place(folder) / "lock").open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            writer._renew()
            assert clock.monotonic() < 0.1, "more than half of the lease is left"
            clock.advance(8)
            with pytest.raises(StorageBusyError, match="for 2 seconds"):
                writer._renew()
        assert clock.monotonic() < 11
        writer._renew()
        writer.close()


def one_message(last_id: int) -> Commit:
    return Commit(epoch=1, previous_id=last_id - 1, last_id=last_id, received_at=1_000, blocks=[block(last_id, [b"x"])])


def test_commits_that_leave_a_renewal_no_time_renew_the_lease(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = VirtualClock()
    backend = SegmentsBackend(folder, clock)
    backend.create(NAME)

    def term_end() -> int:
        return backend.lease_time() + 15_000_000

    def slow(handle: int) -> None:
        clock.advance(10)
        with pytest.raises(StorageBusyError):
            backend.renew_lease(NAME, epoch=1, until=term_end())
        clock.advance(4)
        os.fdatasync(handle)

    assert backend.take_lease(NAME, epoch=0, holder=b"this process", until=term_end())
    with monkeypatch.context() as patch:
        patch.setattr(backend_module, "_RENEWAL_WAIT", 0)
        patch.setattr(stream_module, "sync", slow)
        for number in (1, 2, 3):
            backend.commit(NAME, one_message(number))
            assert backend.head(NAME).lease_until == term_end()
    assert backend.renew_lease(NAME, epoch=1, until=term_end())
    clock.advance(1)
    backend.commit(NAME, one_message(4))
    assert backend.head(NAME).lease_until == term_end() - 1_000_000
    backend.close()


def test_commits_without_any_renewal_keep_the_lease(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = VirtualClock()
    backend = SegmentsBackend(folder, clock)
    backend.create(NAME)

    def slow(handle: int) -> None:
        clock.advance(6)
        os.fdatasync(handle)

    assert backend.take_lease(NAME, epoch=0, holder=b"this process", until=backend.lease_time() + 15_000_000)
    with monkeypatch.context() as patch:
        patch.setattr(stream_module, "sync", slow)
        for number in range(1, 10):
            backend.commit(NAME, one_message(number))
            assert backend.head(NAME).lease_until > backend.lease_time()
    backend.close()


def test_a_commit_is_stored_although_it_cannot_renew_the_lease(
    folder: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def full(path: Path, lease: LeaseRecord) -> None:
        raise OSError(errno.ENOSPC, "no space")

    clock = VirtualClock()
    backend = SegmentsBackend(folder, clock)
    backend.create(NAME)
    assert backend.take_lease(NAME, epoch=0, holder=b"this process", until=backend.lease_time() + 15_000_000)
    clock.advance(10)
    monkeypatch.setattr(backend_module, "write_lease", full)
    backend.commit(NAME, one_message(1))
    assert backend.head(NAME).last_id == 1
    assert "cannot renew the lease" in caplog.text
    backend.close()


def test_a_store_that_is_closed_during_a_commit_closes_its_files_afterwards(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    backend = SegmentsBackend(folder, SystemClock())
    store = LogStore(backend, SystemClock())
    writer = store.log(SPEC).writer()
    writer.append([b"before"])
    late, closing = backend._log(SPEC.name), threading.Thread(target=store.close)

    def closed_meanwhile(handle: int) -> None:
        closing.start()
        until(lambda: backend._closed)
        os.fdatasync(handle)

    monkeypatch.setattr(stream_module, "sync", closed_meanwhile)
    assert writer.append([b"during"]) == IdRange(2, 2)
    join(closing)
    with pytest.raises(StorageError, match="is closed: open the store again"), late.lock.held():
        pass
    with opened(folder, read_only=True) as again:
        assert bodies(again.log(SPEC, create=False)) == [b"before", b"during"]


def test_logs_without_a_writer_have_no_open_files(folder: Path) -> None:
    def files() -> list[Path]:
        targets = [path.readlink() for path in Path("/proc/self/fd").iterdir() if path.exists()]
        return [target for target in targets if target.is_relative_to(folder)]

    with opened(folder) as store:
        for number in range(3):
            with store.log(LogSpec(f"log-{number}")).writer() as writer:
                writer.append([b"a"])
        assert len(store.kinds()) == 3
        assert files() == []


def test_a_log_whose_making_was_interrupted_is_made_with_another_first_id(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with opened(folder) as store:
        with monkeypatch.context() as patch, pytest.raises(StorageError):
            patch.setattr(backend_module, "write_lease", raising)
            store.log(SPEC, first_id=50)
        log = store.log(SPEC, first_id=10)
        with log.writer() as writer:
            assert writer.append([b"a"]) == IdRange(10, 10)
        assert log.verify().ok


def test_a_segment_that_could_not_be_read_again_is_not_begun(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with opened(folder) as store:
        log = store.log(SPEC)
        with log.writer("a producer") as writer:
            writer.append([os.urandom(2000)], sequence=1)
        monkeypatch.setattr(stream_module, "MOST_SNAPSHOT_BYTES", 20)
        with pytest.raises(WriterFailedError, match="sequences of all producers"), log.writer() as writer:
            writer.append([b"next"])
        monkeypatch.undo()
        with log.writer() as writer:
            assert writer.append([b"next"]) == IdRange(2, 2)
        assert log.verify().ok


def test_a_file_that_has_reached_its_limit_leaves_the_reserve_alone(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def too_large(*_: object) -> None:
        raise OSError(errno.EFBIG, os.strerror(errno.EFBIG))

    with opened(folder) as store:
        log = store.log(SPEC)
        log.writer().close()
        reserve = sorted(folder.glob("reserve-*"))
        assert reserve
        monkeypatch.setattr(states_module, "write_all", too_large)
        with pytest.raises(StorageFullError, match="raise the limit on the size of files"):
            log.put_metadata("k", b"value")
        assert sorted(folder.glob("reserve-*")) == reserve
