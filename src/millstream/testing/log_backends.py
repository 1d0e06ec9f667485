"""The conformance suite of what keeps blocks: what every backend of the log must do.

Inherit the class in a test module and give your class the fixture it asks for::

    class TestMyBackend(BackendConformance):
        @pytest.fixture
        def open_backend(self, tmp_path):
            return lambda: MyBackend(tmp_path)      # each call opens the same data again
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import ClassVar

import msgspec
import pytest

from millstream.core.message import Message
from millstream.log import (
    BlockRange,
    FencedError,
    LogNotFoundError,
)
from millstream.log.backend import Backend, BlockStatistics, Commit, ListsEnds, VersionedValue, producer_key
from millstream.log.block import encode_block
from millstream.log.block_header import BlockOrigin, EncodedBlock
from millstream.log.encoding.columns import from_messages
from millstream.log.ids import IndexEntry
from millstream.log.kinds import KIND
from millstream.log.watermarks import WATERMARKS, Watermarks, encode_watermarks

NAME = "weather"


def block(first_id: int, bodies: Sequence[bytes], *, time: int = 1_000, epoch: int = 1) -> EncodedBlock:
    """A block of *bodies* from *first_id* on, received at *time* (microseconds)."""
    columns = from_messages([Message(body) for body in bodies]).stamped(time)
    return encode_block(columns, first_id, BlockOrigin(NAME, epoch))


class BackendConformance:
    """What a :class:`~millstream.log.backend.Backend` must do. Needs the fixture ``open_backend``."""

    keeps_index: ClassVar[bool] = True
    """Whether it keeps something beside the blocks to find them by."""

    renames: ClassVar[bool] = True
    """Whether a log can get another name."""

    @pytest.fixture
    def open_backend(self) -> Callable[[], Backend]:
        """A function that opens the same data each time it is called."""
        raise LookupError("a conformance test requires the fixture open_backend: define it in your test class")

    @pytest.fixture
    def backend(self, open_backend: Callable[[], Backend]) -> Backend:
        """A backend with one empty log, and its first writer's lease taken."""
        backend = open_backend()
        backend.create(NAME)
        assert backend.take_lease(NAME, epoch=0, holder=b"first", until=10)
        return backend

    def test_a_new_log_is_empty_and_has_no_writer(self, open_backend: Callable[[], Backend]) -> None:
        backend = open_backend()
        backend.create("another")
        head = backend.head("another")
        assert (head.last_id, head.epoch, head.holder) == (0, 0, b"")
        assert backend.statistics("another") == BlockStatistics()
        assert list(backend.read("another", 1, 100, max_bytes=100)) == []

    def test_logs_are_listed_by_name_and_created_once(self, backend: Backend) -> None:
        backend.create("a")
        backend.commit(NAME, Commit(epoch=1, previous_id=0, last_id=1, received_at=5, blocks=[block(1, [b"x"])]))
        backend.create(NAME)
        assert list(backend.logs()) == ["a", NAME]
        assert backend.head(NAME).last_id == 1

    def test_a_log_keeps_the_kind_with_which_it_was_made(self, open_backend: Callable[[], Backend]) -> None:
        backend = open_backend()
        for name, kind in (
            ("orders", "topic"),
            ("system:x", "ledger"),
            ("orders", "batches"),
            ("plain", "application"),
        ):
            backend.create(name, kind=kind)
        for each in (backend, open_backend()):
            assert dict(each.kinds()) == {"orders": "topic", "plain": "application", "system:x": "ledger"}
            assert each.get_state("system:x", KIND) == VersionedValue(1, b"ledger")
            if isinstance(each, ListsEnds):
                assert dict(each.last_ids()) == {name: each.head(name).last_id for name in each.logs()}

    def test_a_log_that_gets_another_name_takes_all_with_it(
        self, backend: Backend, open_backend: Callable[[], Backend]
    ) -> None:
        backend.commit(
            NAME,
            Commit(
                epoch=1,
                previous_id=0,
                last_id=2,
                received_at=5,
                blocks=[block(1, [b"x", b"y"], time=5)],
                producer="importer",
                sequence=7,
            ),
        )
        assert backend.put_state(NAME, "reader/a", b"place", version=0)
        assert not backend.rename(NAME, "system:weather", epoch=0)
        assert backend.rename(NAME, "system:weather", epoch=1) == self.renames
        if not self.renames:
            assert list(backend.logs()) == [NAME]
            return
        with pytest.raises(LogNotFoundError):
            backend.head(NAME)
        backend.create(NAME)
        assert backend.take_lease(NAME, epoch=0, holder=b"second", until=10)
        backend.commit(
            NAME, Commit(epoch=1, previous_id=0, last_id=1, received_at=9, blocks=[block(1, [b"another"], time=9)])
        )
        assert backend.take_lease("system:weather", epoch=1, holder=b"third", until=10)
        backend.commit(
            "system:weather",
            Commit(epoch=2, previous_id=2, last_id=3, received_at=6, blocks=[block(3, [b"z"], time=6, epoch=2)]),
        )
        for each in (backend, open_backend()):
            assert list(each.logs()) == ["system:weather", NAME]
            head = each.head("system:weather")
            assert (head.last_id, head.epoch, head.holder) == (3, 2, b"third")
            assert [found.last_id for found in each.read("system:weather", 1, 3, max_bytes=1 << 20)] == [2, 3]
            assert each.get_state("system:weather", "reader/a") == VersionedValue(1, b"place")
            assert each.get_state("system:weather", producer_key("importer")).value == b"7"
            assert each.statistics("system:weather").count == 3
            assert (each.head(NAME).last_id, each.get_state(NAME, "reader/a")) == (1, VersionedValue())
            assert each.statistics(NAME).count == 1
            assert list(each.check("system:weather")) == list(each.check(NAME)) == []

    def test_the_format_of_a_store_can_be_raised_again_and_again(self, backend: Backend) -> None:
        backend.upgrade()
        backend.upgrade()
        assert list(backend.logs()) == [NAME]

    def test_an_unknown_log_is_not_found_by_any_call(self, backend: Backend) -> None:
        for call in (
            lambda: backend.head("none"),
            lambda: backend.statistics("none"),
            lambda: backend.get_state("none", "key"),
            lambda: backend.put_state("none", "key", b"", version=0),
            lambda: backend.read("none", 1, 2, max_bytes=1),
            lambda: backend.ranges("none", 1, 2),
            lambda: backend.take_lease("none", epoch=0, holder=b"x", until=1),
            lambda: backend.commit("none", Commit(epoch=1, previous_id=0, last_id=1, received_at=5, blocks=[])),
            lambda: backend.reclaim("none", 1, max_bytes=1),
        ):
            with pytest.raises(LogNotFoundError):
                call()

    def test_a_commit_stores_blocks_pointer_and_sequence_together(
        self, backend: Backend, open_backend: Callable[[], Backend]
    ) -> None:
        blocks = [block(1, [b"a", b"b"]), block(3, [b"c"])]
        backend.commit(
            NAME,
            Commit(epoch=1, previous_id=0, last_id=3, received_at=77, blocks=blocks, producer="importer", sequence=5),
        )
        again = open_backend()
        assert [found.data for found in again.read(NAME, 1, 3, max_bytes=1 << 20)] == [b.data for b in blocks]
        assert (again.head(NAME).last_id, again.head(NAME).received_at) == (3, 77)
        assert again.get_state(NAME, producer_key("importer")).value == b"5"

    def test_a_commit_of_another_epoch_or_pointer_changes_nothing(self, backend: Backend) -> None:
        backend.commit(NAME, Commit(epoch=1, previous_id=0, last_id=1, received_at=5, blocks=[block(1, [b"a"])]))
        for stale in (
            Commit(
                epoch=2, previous_id=1, last_id=2, received_at=6, blocks=[block(2, [b"x"])], producer="p", sequence=1
            ),
            Commit(
                epoch=1, previous_id=0, last_id=1, received_at=6, blocks=[block(1, [b"x"])], producer="p", sequence=1
            ),
        ):
            with pytest.raises(FencedError):
                backend.commit(NAME, stale)
        assert backend.head(NAME).last_id == 1
        assert backend.statistics(NAME).count == 1
        assert backend.get_state(NAME, producer_key("p")) == VersionedValue()

    def test_reading_begins_with_the_block_that_holds_the_id(self, backend: Backend) -> None:
        backend.commit(
            NAME,
            Commit(
                epoch=1,
                previous_id=0,
                last_id=9,
                received_at=5,
                blocks=[block(first, [b"a", b"b", b"c"]) for first in (1, 4, 7)],
            ),
        )
        found = backend.read(NAME, 5, 7, max_bytes=1 << 20)
        assert [(b.first_id, b.last_id) for b in found] == [(4, 6), (7, 9)]
        assert [(b.first_id, b.last_id) for b in backend.ranges(NAME, 5, 7)] == [(4, 6), (7, 9)]
        assert list(backend.read(NAME, 10, 20, max_bytes=1 << 20)) == []

    def test_reading_returns_one_block_at_least_and_no_more_bytes_than_asked_for(self, backend: Backend) -> None:
        backend.commit(
            NAME,
            Commit(
                epoch=1,
                previous_id=0,
                last_id=9,
                received_at=5,
                blocks=[block(first, [b"a", b"b", b"c"]) for first in (1, 4, 7)],
            ),
        )
        size = len(block(1, [b"a", b"b", b"c"]).data)
        assert len(backend.read(NAME, 1, 9, max_bytes=1)) == 1
        assert len(backend.read(NAME, 1, 9, max_bytes=2 * size)) == 2

    def test_what_is_kept_beside_blocks_is_what_they_say(self, backend: Backend) -> None:
        blocks = [block(1, [b"a", b"b"], time=9), block(3, [b"c"], time=4), block(4, [b"d"] * 6, time=-3)]
        backend.commit(NAME, Commit(epoch=1, previous_id=0, last_id=9, received_at=5, blocks=blocks))
        heads = [(made.header, len(made.data)) for made in blocks]
        said = [
            IndexEntry(
                head.first_id, head.last_id, size, head.min_event_time, head.max_event_time, head.min_received_at,
                head.max_received_at, head.epoch,
            )
            for head, size in heads
        ]  # fmt: skip
        for first_id, last_id, expected in ((1, 9, said), (2, 3, said[:2]), (5, 5, said[2:]), (10, 20, [])):
            found = backend.index(NAME, first_id, last_id)
            kept = [msgspec.structs.replace(entry, epoch=entry.epoch or 1) for entry in found]
            assert kept == (expected if self.keeps_index else [])
        with pytest.raises(LogNotFoundError):
            backend.index("none", 1, 2)

    def test_statistics_add_up_the_blocks(self, backend: Backend) -> None:
        blocks = [block(1, [b"a", b"b"], time=9), block(3, [b"c"], time=4)]
        backend.commit(NAME, Commit(epoch=1, previous_id=0, last_id=3, received_at=5, blocks=blocks))
        size = sum(len(b.data) for b in blocks)
        assert backend.statistics(NAME) == BlockStatistics(1, 3, 3, 2, size, 4, 9, 4, 9)

    def test_the_first_block_since_a_time_is_found_by_its_receive_times(self, backend: Backend) -> None:
        for first, time in ((1, 100), (3, 300), (5, 200), (7, 400)):
            made = block(first, [b"a", b"b"], time=time)
            backend.commit(
                NAME, Commit(epoch=1, previous_id=first - 1, last_id=first + 1, received_at=5, blocks=[made])
            )
        size = len(block(1, [b"a", b"b"]).data)
        for time, first in ((0, 1), (100, 1), (101, 3), (300, 3), (301, 7)):
            assert backend.first_block_since(NAME, time) == BlockRange(first, first + 1, size)
        assert backend.first_block_since(NAME, 401) is None

    def test_a_lease_is_taken_once_per_epoch(self, backend: Backend) -> None:
        assert backend.take_lease(NAME, epoch=1, holder=b"second", until=20)
        assert not backend.take_lease(NAME, epoch=1, holder=b"third", until=30)
        head = backend.head(NAME)
        assert (head.epoch, head.holder, head.lease_until) == (2, b"second", 20)

    def test_only_the_holder_renews_and_releases(self, backend: Backend) -> None:
        assert backend.renew_lease(NAME, epoch=1, until=50)
        backend.take_lease(NAME, epoch=1, holder=b"second", until=60)
        assert not backend.renew_lease(NAME, epoch=1, until=99)
        backend.release_lease(NAME, epoch=1)
        assert backend.head(NAME).holder == b"second"
        backend.release_lease(NAME, epoch=2)
        assert (backend.head(NAME).holder, backend.head(NAME).epoch) == (b"", 2)
        assert not backend.renew_lease(NAME, epoch=2, until=99)

    def test_a_state_is_written_only_over_the_version_that_was_read(self, backend: Backend) -> None:
        assert backend.get_state(NAME, "k") == VersionedValue(0, b"")
        assert backend.put_state(NAME, "k", b"one", version=0)
        assert not backend.put_state(NAME, "k", b"two", version=0)
        assert backend.put_state(NAME, "k", b"two", version=1)
        assert backend.get_state(NAME, "k") == VersionedValue(2, b"two")

    def test_states_are_found_by_prefix_within_their_log(self, backend: Backend) -> None:
        backend.create("other")
        for key in ("a/1", "a/2", "b/1"):
            backend.put_state(NAME, key, key.encode(), version=0)
        backend.put_state("other", "a/3", b"", version=0)
        assert {key: state.value for key, state in backend.states(NAME, "a/").items()} == {"1": b"a/1", "2": b"a/2"}

    def test_a_new_log_has_its_marks_at_its_first_id(self, backend: Backend) -> None:
        assert (backend.head(NAME).first_id, backend.head(NAME).hot_id) == (1, 1)
        assert backend.get_state(NAME, WATERMARKS) == VersionedValue()

    def test_the_head_tells_the_marks(self, backend: Backend, open_backend: Callable[[], Backend]) -> None:
        assert backend.put_state(NAME, WATERMARKS, encode_watermarks(Watermarks(3, 7)), version=0)
        for each in (backend, open_backend()):
            assert (each.head(NAME).first_id, each.head(NAME).hot_id) == (3, 7)

    def test_a_log_may_begin_at_a_later_id(self, backend: Backend, open_backend: Callable[[], Backend]) -> None:
        backend.create("later", first_id=1000)
        backend.create("later", first_id=2000)
        for each in (backend, open_backend()):
            head = each.head("later")
            assert (head.last_id, head.first_id, head.hot_id, head.epoch) == (999, 1000, 1000, 0)
        assert backend.statistics("later") == BlockStatistics()
        assert backend.take_lease("later", epoch=0, holder=b"first", until=10)
        made = [encode_block(from_messages([Message(b"a")]).stamped(1), 1000, BlockOrigin("later", 1))]
        backend.commit("later", Commit(epoch=1, previous_id=999, last_id=1000, received_at=5, blocks=made))
        assert [(b.first_id, b.last_id) for b in open_backend().read("later", 1, 2000, max_bytes=1)] == [(1000, 1000)]
        assert list(backend.check("later")) == []

    def test_figures_are_those_of_the_blocks_from_an_id_on(self, backend: Backend) -> None:
        for first, time in ((1, 400), (4, 200), (7, 300)):
            backend.commit(
                NAME,
                Commit(
                    epoch=1,
                    previous_id=first - 1,
                    last_id=first + 2,
                    received_at=5,
                    blocks=[block(first, [b"a", b"b", b"c"], time=time)],
                ),
            )
        size = len(block(1, [b"a", b"b", b"c"]).data)
        for first in (4, 5, 6):
            assert backend.statistics(NAME, first) == BlockStatistics(4, 9, 6, 2, 2 * size, 200, 300, 200, 300)
            assert backend.first_block_since(NAME, 100, first) == BlockRange(4, 6, size)
            assert backend.first_block_since(NAME, 300, first) == BlockRange(7, 9, size)
            assert backend.first_block_since(NAME, 400, first) is None
        assert backend.statistics(NAME, 10) == BlockStatistics()

    def test_old_blocks_are_freed_a_share_at_a_time_and_never_one_that_is_kept(
        self, backend: Backend, open_backend: Callable[[], Backend]
    ) -> None:
        """How much goes at once is up to the backend; what is asked for, order and rest are not."""
        for first in range(1, 181, 3):
            backend.commit(
                NAME,
                Commit(
                    epoch=1,
                    previous_id=first - 1,
                    last_id=first + 2,
                    received_at=5,
                    blocks=[block(first, [b"a" * 200, b"b", b"c"])],
                ),
            )
        size = len(block(1, [b"a" * 200, b"b", b"c"]).data)
        assert backend.reclaim(NAME, 3, max_bytes=1 << 20) == 0
        assert backend.put_state(NAME, WATERMARKS, encode_watermarks(Watermarks(152, 152)), version=0)
        freed = [backend.reclaim(NAME, 152, max_bytes=4 * size)]
        kept = list(backend.ranges(NAME, 1, 180))
        assert 1 < kept[0].first_id <= 151
        while freed[-1]:
            freed.append(backend.reclaim(NAME, 152, max_bytes=4 * size))
        assert len(freed) > 2
        for each in (backend, open_backend()):
            kept = list(each.ranges(NAME, 1, 180))
            assert kept[0].first_id <= 151
            assert [b.first_id for b in kept] == list(range(kept[0].first_id, 181, 3))
            assert each.head(NAME).last_id == 180
            found = each.read(NAME, 151, 180, max_bytes=1 << 20)
            assert [b.data for b in found] == [block(n, [b"a" * 200, b"b", b"c"]).data for n in range(151, 181, 3)]
            assert each.statistics(NAME, 152).count == 30
            assert list(each.check(NAME)) == []

    def test_a_log_whose_blocks_were_all_freed_goes_on(
        self, backend: Backend, open_backend: Callable[[], Backend]
    ) -> None:
        backend.commit(
            NAME,
            Commit(
                epoch=1,
                previous_id=0,
                last_id=2,
                received_at=77,
                blocks=[block(1, [b"a", b"b"])],
                producer="p",
                sequence=4,
            ),
        )
        assert backend.put_state(NAME, WATERMARKS, encode_watermarks(Watermarks(3, 3)), version=0)
        while backend.reclaim(NAME, 3, max_bytes=1 << 20):
            pass
        backend = open_backend()
        assert backend.statistics(NAME, 3) == BlockStatistics()
        assert (backend.head(NAME).last_id, backend.head(NAME).hot_id) == (2, 3)
        backend.commit(
            NAME,
            Commit(
                epoch=1, previous_id=2, last_id=3, received_at=78, blocks=[block(3, [b"c"])], producer="p", sequence=5
            ),
        )
        assert [b.first_id for b in backend.read(NAME, 3, 3, max_bytes=1)] == [3]
        assert backend.get_state(NAME, producer_key("p")).value == b"5"

    def test_lease_time_does_not_go_back(self, backend: Backend) -> None:
        times = [backend.lease_time() for _ in range(10)]
        assert times == sorted(times)
