"""Power is lost in the middle of any fdatasync of segment files: what was confirmed is there, and nothing by half."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millstream.core.clock import SystemClock
from millstream.log import LogSpec, LogStore
from millstream.log.backends.segments import stream as stream_module
from millstream.log.backends.segments.backend import SegmentsBackend
from millstream.log.backends.segments.files import sync
from millstream.log.backends.segments.format import SEGMENT_HEAD, CommittedEnd, decode_end, encode_end, snapshot_size
from millstream.log.backends.segments.lease import LeaseRecord, write_lease
from suite.sizes import examples

SPEC = LogSpec("weather", block_messages=20)
COMMITS, PACK = 8, 25


class PowerLoss:
    """Keeps what lies on the disk when the power is lost in the sync number *moment*.

    Of the file that is being synced everything before is on the disk, and of the rest what the test chooses; the file
    ``end``, which is never synced, may hold anything that it ever held.
    """

    def __init__(self, folder: Path, image: Path, moment: int) -> None:
        self.folder, self.image, self.moment = folder, image, moment
        self.calls = 0
        self.synced: dict[Path, int] = {}
        self.torn: tuple[str, int] | None = None
        self.ends: list[bytes] = []
        self.confirmed = 0

    def sync(self, handle: int) -> None:
        path = Path(f"/proc/self/fd/{handle}").readlink()
        self.calls += 1
        if self.calls == self.moment:
            shutil.copytree(self.folder, self.image)
            self.torn = path.name, self.synced.get(path) or head_size(path)
        sync(handle)
        self.synced[path] = path.stat().st_size


@contextmanager
def machine(segment_bytes: int, moment: int) -> Iterator[PowerLoss]:
    with tempfile.TemporaryDirectory(prefix="millstream-power-") as folder, pytest.MonkeyPatch.context() as patch:
        power = PowerLoss(Path(folder) / "store", Path(folder) / "image", moment)
        clock = SystemClock()
        with LogStore(SegmentsBackend(power.folder, clock, segment_bytes=segment_bytes), clock) as store:
            writer = store.log(SPEC).writer("p")
            patch.setattr(stream_module, "sync", power.sync)
            for turn in range(COMMITS):
                if power.torn is None:
                    power.confirmed = turn
                writer.append([b"%d" % (turn * PACK + n) for n in range(PACK)], sequence=turn + 1)
                power.ends.append((power.folder / "logs" / SPEC.name / "end").read_bytes())
            patch.undo()
            if power.torn is None:
                power.confirmed = COMMITS
                shutil.copytree(power.folder, power.image)
            writer.close()
        yield power


@examples(ci=25, long=500)
@given(
    segment_bytes=st.sampled_from([600, 1500, 1 << 20]),
    moment=st.integers(1, COMMITS + 4),
    kept=st.floats(0, 1),
    zeros=st.booleans(),
    age=st.integers(0, COMMITS),
    read_first=st.booleans(),
)
def test_p2_durability_nothing_confirmed_is_lost_when_the_power_is(
    segment_bytes: int, moment: int, kept: float, zeros: bool, age: int, read_first: bool
) -> None:
    with machine(segment_bytes, moment) as power:
        place = power.image / "logs" / SPEC.name
        if power.torn is not None:
            tear(place / power.torn[0], power.torn[1], kept, zeros)
        write_lease(place / "lease", LeaseRecord(1, b"", 0, 0))  # of a process that is gone
        forget_end(place / "end", [encode_end(CommittedEnd()), *power.ends[: power.confirmed]], age)
        clock = SystemClock()
        if read_first:
            with LogStore(SegmentsBackend(power.image, clock, read_only=True), clock) as store:
                check(power.confirmed, [m.body for batch in store.log(SPEC, create=False).read() for m in batch])
        with LogStore(SegmentsBackend(power.image, clock), clock) as store:
            with store.log(SPEC).writer("p") as writer:
                bodies = [m.body for batch in store.log(SPEC).read() for m in batch]
                check(power.confirmed, bodies)
                assert (writer.last_id, writer.sequence * PACK) == (len(bodies), len(bodies))
                writer.append([b"next"])
            assert [m.body for batch in store.log(SPEC).read() for m in batch] == [*bodies, b"next"]
            assert store.log(SPEC).verify().ok


def check(confirmed: int, bodies: list[bytes]) -> None:
    """All that was confirmed is there, and the commit that was under way wholly or not at all."""
    assert bodies == [b"%d" % n for n in range(len(bodies))]
    assert len(bodies) in {confirmed * PACK, (confirmed + 1) * PACK}


def head_size(path: Path) -> int:
    """The head of a segment was synced before the segment got its name."""
    return SEGMENT_HEAD + snapshot_size(path.read_bytes()[:SEGMENT_HEAD])


def tear(path: Path, synced: int, kept: float, zeros: bool) -> None:
    """Of the bytes beyond *synced* only a part was written: the file ends there, or goes on with zeros."""
    data = path.read_bytes()
    cut = synced + int(kept * (len(data) - synced))
    path.write_bytes(data[:cut] + (bytes(len(data) - cut) if zeros and len(data) - cut >= 512 else b""))


def forget_end(path: Path, ends: list[bytes], age: int) -> None:
    """The file holds one of *ends*, announced before the machine was started anew."""
    end = decode_end(ends[max(len(ends) - 1 - age, 0)])
    path.write_bytes(
        encode_end(
            CommittedEnd(
                boot=1, segment=end.segment, offset=end.offset, last_id=end.last_id, received_at=end.received_at
            )
        )
    )
