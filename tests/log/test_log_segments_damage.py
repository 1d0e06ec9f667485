"""Torn writes, flipped bits and lost files of a segment store: cut off, told, or of no harm; never skipped."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from millstream.log import (
    CorruptBlockError,
    DamagedLogError,
    IdRange,
    Log,
    LogError,
    LogSpec,
    MissingBlockError,
    WriterFailedError,
    copy_log,
)
from millstream.log.backends.segments import index as index_module
from millstream.log.backends.segments.format import CommittedEnd, FormatError, SegmentHead, decode_end, encode_end
from millstream.log.backends.segments.lease import LeaseRecord, write_lease
from millstream.log.backends.segments.scan import SegmentScan
from millstream.log.block_header import log_hash
from millstream.log.reading import scan as scan_module
from support.segment_folders import (
    SPEC,
    bodies,
    filled,
    flip,
    opened,
    place,
    reboot,
    segments,
)

EXPECTED = [b"%d" % n for n in range(1, 101)]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "store"


@pytest.fixture
def log(folder: Path) -> Iterator[Log]:
    with filled(folder) as log:
        yield log


@pytest.fixture
def crashed(folder: Path) -> Path:
    """A store whose writer died when its third commit was written, but not announced. Ids 1 to 20 are confirmed."""
    live = folder.with_name("live")
    with opened(live, segment_bytes=1 << 20) as store, store.log(SPEC).writer("importer") as writer:
        for turn in range(1, 4):
            if turn == 3:
                end = (place(live) / "end").read_bytes()
            writer.append([b"%d" % turn] * 10, sequence=turn)
        shutil.copytree(live, folder)
    (place(folder) / "end").write_bytes(end)
    write_lease(place(folder) / "lease", LeaseRecord(1, b"", 0, 0))
    return folder


def confirmed_bytes(folder: Path) -> int:
    return decode_end((place(folder) / "end").read_bytes()).offset


@pytest.mark.parametrize("after", ["a crash", "a power loss"])
def test_a_write_that_was_cut_short_anywhere_is_cut_off(crashed: Path, after: str) -> None:
    if after == "a power loss":
        reboot(crashed)
    (path,) = segments(crashed)
    whole, start = path.read_bytes(), confirmed_bytes(crashed)
    pristine = crashed.with_name("pristine")
    shutil.copytree(crashed, pristine)
    for cut in [*range(start, len(whole), 7), len(whole)]:
        shutil.copytree(pristine, crashed, dirs_exist_ok=True)
        path.write_bytes(whole[:cut])
        with opened(crashed, segment_bytes=1 << 20) as store:
            before = store.log(SPEC).last_id
            with store.log(SPEC).writer("importer") as writer:
                kept = 30 if cut == len(whole) else 20
                assert (writer.last_id, writer.sequence) == (kept, kept // 10)
                assert before in {20, kept}
                writer.append([b"next"])
            assert bodies(store.log(SPEC))[kept:] == [b"next"]
            assert store.log(SPEC).verify().ok


def test_a_write_whose_sectors_are_partly_unwritten_is_cut_off(crashed: Path) -> None:
    reboot(crashed)
    (path,) = segments(crashed)
    whole, start = path.read_bytes(), confirmed_bytes(crashed)
    path.write_bytes(whole[:start] + bytes(len(whole) - start))
    with opened(crashed) as store, store.log(SPEC).writer("importer") as writer:
        assert (writer.last_id, writer.sequence) == (20, 2)


def test_readers_see_what_is_confirmed_and_nothing_that_was_only_written(crashed: Path) -> None:
    with opened(crashed, read_only=True) as store:
        assert store.log(SPEC, create=False).last_id == 20


def test_after_a_reboot_readers_see_what_is_there_without_writing(crashed: Path) -> None:
    (place(crashed) / "end").write_bytes(bytes(56))
    before = {path: path.read_bytes() for path in crashed.rglob("*") if path.is_file()}
    with opened(crashed, read_only=True) as store:
        log = store.log(SPEC, create=False)
        assert (log.last_id, len(bodies(log)), log.last_id) == (30, 30, 30)
    assert before == {path: path.read_bytes() for path in crashed.rglob("*") if path.is_file()}


def test_damage_at_the_end_is_not_taken_for_a_torn_write(log: Log, folder: Path) -> None:
    """Even where nothing but the segment says how far it went: the end is old, the lease knows of no message."""
    last = segments(folder)[-1]
    first_id = int(last.stem)
    (place(folder) / "end").write_bytes(
        encode_end(CommittedEnd(boot=1, segment=first_id, offset=0, last_id=first_id - 1, received_at=0))
    )
    write_lease(place(folder) / "lease", LeaseRecord(1, b"", 0, 0))
    for position in (-30, -200, -250):
        flip(last, position)
        with opened(folder) as store:
            with pytest.raises(DamagedLogError, match="is damaged"):
                store.log(SPEC).writer()
            with pytest.raises(DamagedLogError):
                bodies(store.log(SPEC))
        flip(last, position)


def test_a_flipped_bit_anywhere_is_told_or_does_no_harm(log: Log, folder: Path) -> None:
    log._backend.close()
    files = [path for path in place(folder).iterdir() if path.is_file()]
    for path in files:
        data = path.read_bytes()
        for position in range(0, len(data), max(len(data) // 25, 1)):
            flip(path, position)
            check_honest(folder, f"{path.name} at {position}")
            path.write_bytes(data)


def check_honest(folder: Path, what: str) -> None:
    """All messages are read as they were, or an error is raised after a beginning of them."""
    seen: list[bytes] = []
    try:
        with opened(folder, read_only=True) as store:
            log = store.log(SPEC, create=False)
            found = log.verify()
            for batch in log.read():
                seen += [m.body for m in batch]
    except LogError:
        assert seen == EXPECTED[: len(seen)], what
        return
    assert seen == EXPECTED, what
    assert found.messages == 100, what


@pytest.mark.parametrize("position", [0, 8, 40, 96, 130, -9])
def test_a_flipped_bit_in_a_block_is_never_skipped(log: Log, folder: Path, position: int) -> None:
    (block,) = log._backend.read(SPEC.name, 21, 21, max_bytes=1)
    path = next(path for path in segments(folder) if block.data in path.read_bytes())
    flip(path, path.read_bytes().index(block.data) + position % len(block.data))
    seen: list[bytes] = []
    with pytest.raises(CorruptBlockError, match="begins at id 21 is damaged"):
        for batch in log.read():
            seen += [m.body for m in batch]
    assert seen == EXPECTED[:20]
    assert bodies(log, 31) == EXPECTED[30:]
    assert not log.verify().ok


def test_a_segment_that_is_gone_is_noticed_and_what_lies_around_it_is_read(log: Log, folder: Path) -> None:
    gone = segments(folder)[1]
    first, after = int(gone.stem), int(segments(folder)[2].stem)
    gone.unlink()
    with opened(folder) as store:
        again = store.log(SPEC)
        with pytest.raises(MissingBlockError, match=f"ids {first} to {after - 1} "):
            bodies(again)
        assert bodies(again, after) == EXPECTED[after - 1 :]
        assert f"ids {first} to {after - 1} are missing" in again.verify().problems


@pytest.mark.parametrize("rebooted", [False, True])
def test_a_last_segment_that_is_gone_or_short_is_noticed_by_reader_and_writer(
    log: Log, folder: Path, rebooted: bool
) -> None:
    last = segments(folder)[-1]
    data = last.read_bytes()
    for damaged in (None, data[: len(data) // 2], b""):
        if damaged is None:
            last.unlink()
        else:
            last.write_bytes(damaged)
        if rebooted:
            reboot(folder)
        with opened(folder) as store:
            with pytest.raises(DamagedLogError):
                bodies(store.log(SPEC))
            with pytest.raises(DamagedLogError):
                store.log(SPEC).writer()
            assert not store.log(SPEC).verify().ok


def test_the_end_of_a_closed_log_is_known_even_without_the_file_that_says_it(log: Log, folder: Path) -> None:
    """The writer's lease says what was confirmed when it was given back."""
    last = segments(folder)[-1]
    last.unlink()
    (place(folder) / "end").write_bytes(b"")
    with opened(folder) as store:
        with pytest.raises(MissingBlockError):
            bodies(store.log(SPEC))
        with pytest.raises(DamagedLogError):
            store.log(SPEC).writer()


@pytest.fixture
def older(folder: Path) -> Callable[[], None]:
    """Puts back the segment and its end as they were after the first of two commits, ids 1 to 10 of 20."""
    with opened(folder, segment_bytes=1 << 20) as store, store.log(SPEC).writer() as writer:
        writer.append([b"a"] * 10)
        copies = {path: path.read_bytes() for path in [*segments(folder), place(folder) / "end"]}
        writer.append([b"b"] * 10)

    def put_back() -> None:
        for path, data in copies.items():
            path.write_bytes(data)

    return put_back


@pytest.mark.parametrize("trimmed", [False, True])
def test_an_older_copy_of_a_segment_is_refused_by_a_writer_and_told_to_readers(
    folder: Path, older: Callable[[], None], trimmed: bool
) -> None:
    """It ends between two commits, as a sound segment does; only the lease knows of those that are missing."""
    if trimmed:  # then no reader needs the messages, but a writer cannot continue a segment that ends too early
        with opened(folder) as store:
            store.log(SPEC).trim(21)
    before = {path: path.read_bytes() for path in place(folder).iterdir()}
    older()
    damaged = {path: path.read_bytes() for path in place(folder).iterdir()}
    with opened(folder) as store:
        log = store.log(SPEC)
        refusal = r"01\.seg ends at id 10, but messages up to id 20 were confirmed, so ids 11 to 20 are missing"
        with pytest.raises(DamagedLogError, match=refusal):
            log.writer()
        assert {path: path.read_bytes() for path in place(folder).iterdir()} == damaged
        if not trimmed:
            with pytest.raises(MissingBlockError, match="ids 11 to 20 of log 'weather' are missing"):
                bodies(log)
            assert log.verify().problems == ("ids 11 to 20 are missing",)
    for path, data in before.items():
        path.write_bytes(data)
    with opened(folder) as store, store.log(SPEC).writer() as writer:
        writer.append([b"next"])
        assert bodies(store.log(SPEC)) == [*([] if trimmed else [b"a"] * 10 + [b"b"] * 10), b"next"]


def test_what_lies_before_the_missing_messages_of_a_log_can_be_copied(
    folder: Path, older: Callable[[], None], tmp_path: Path
) -> None:
    older()
    with opened(folder, read_only=True) as store, opened(tmp_path / "copy") as other:
        copy = other.log(SPEC)
        with pytest.raises(MissingBlockError, match="ids 11 to 20"):
            copy_log(store.log(SPEC, create=False), copy)
        assert bodies(copy) == [b"a"] * 10
        with copy.writer() as writer:
            assert writer.append([b"next"]) == IdRange(11, 11)


def test_a_last_segment_with_a_damaged_head_is_noticed_after_a_reboot(log: Log, folder: Path) -> None:
    (place(folder) / "end").write_bytes(encode_end(CommittedEnd()))
    write_lease(place(folder) / "lease", LeaseRecord(1, b"", 0, 0))
    flip(segments(folder)[-1], 20)
    with opened(folder) as store:
        with pytest.raises(MissingBlockError):
            bodies(store.log(SPEC))
        with pytest.raises(DamagedLogError):
            store.log(SPEC).writer()


def test_a_segment_that_is_deleted_under_its_writer_takes_no_more(folder: Path) -> None:
    with opened(folder) as store:
        writer = store.log(SPEC).writer()
        writer.append([b"a"])
        segments(folder)[-1].unlink()
        with pytest.raises(WriterFailedError, match="was deleted"):
            writer.append([b"b"])
        writer.close()


def test_segments_that_changed_names_are_noticed(log: Log, folder: Path) -> None:
    one, two = segments(folder)[0], segments(folder)[1]
    spare = folder / "spare"
    one.rename(spare)
    two.rename(one)
    spare.rename(two)
    with opened(folder) as store:
        with pytest.raises(MissingBlockError):
            bodies(store.log(SPEC))
        problems = store.log(SPEC).verify().problems
        assert sum("but its file name states id" in problem for problem in problems) == 2


def test_a_segment_of_another_log_is_told_with_the_hashes_of_both_names(log: Log, folder: Path) -> None:
    path = segments(folder)[0]
    with opened(folder) as store, store.log(LogSpec("other")).writer() as writer:
        writer.append([b"x"])
    (foreign,) = (path.parents[1] / "other").glob("*.seg")
    shutil.copy(foreign, path)
    with opened(folder) as store:
        (problem, *_) = store.log(SPEC).verify().problems
    hashes = f"it has the log hash {log_hash('other'):016x}, and this log has {log_hash(SPEC.name):016x}"
    assert problem == f"{path}: the head of the segment is invalid: the file belongs to another log: {hashes}"


def test_a_damaged_footer_is_told_and_the_index_made_anew(log: Log, folder: Path) -> None:
    path = segments(folder)[0]
    flip(path, path.stat().st_size - 40)
    with opened(folder) as store:
        assert bodies(store.log(SPEC)) == EXPECTED
        (problem,) = store.log(SPEC).verify().problems
        assert "the footer of the segment is damaged" in problem


def test_a_record_that_is_short_old_or_changed_is_told_as_that() -> None:
    data = encode_end(CommittedEnd(last_id=7))
    for damaged, told in (
        (data + b"\0", rf"has {len(data) + 1} bytes instead of the {len(data)} bytes that it states$"),
        (data[:-1] + b"\1", "the CRC32C of the record does not match$"),
        (data[:4] + b"\0" + data[5:], r"version 0, but this release reads version 1$"),
        (data[:4] + b"\2" + data[5:], r"version 2, but this release reads version 1: upgrade Millstream$"),
    ):
        with pytest.raises(FormatError, match=told):
            decode_end(damaged)


def test_a_segment_that_is_deleted_under_a_reader_is_one_gap_and_what_follows_is_read(
    log: Log, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scan_module, "FETCH_BYTES", 1)
    assert bodies(log) == EXPECTED, "now the index is in memory"
    gone = segments(folder)[1]
    first, after = int(gone.stem), int(segments(folder)[2].stem)
    gone.unlink()
    gap, *batches = log.read(first, gaps="all")
    assert (gap.first_id, gap.last_id) == (first, after - 1)
    assert [message.body for batch in batches for message in batch] == EXPECTED[after - 1 :]


def test_the_index_of_a_segment_with_a_damaged_footer_is_made_once(
    log: Log, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scan_module, "FETCH_BYTES", 1)
    damaged = segments(folder)[0]
    data = damaged.read_bytes()
    flip(damaged, -30)
    made: list[Path] = []

    def counted(path: Path, head: SegmentHead) -> SegmentScan:
        made.append(path)
        return SegmentScan(path, head)

    with opened(folder) as store:
        again = store.log(SPEC)
        monkeypatch.setattr(index_module, "SegmentScan", counted)
        assert bodies(again) == EXPECTED
        assert made == [damaged]
        damaged.write_bytes(data)
        assert bodies(again) == EXPECTED
        assert made == [damaged]
        assert again.verify().ok
