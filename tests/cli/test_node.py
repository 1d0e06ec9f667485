"""The node: everything on one folder, wired from settings."""

from __future__ import annotations

import contextlib
import gc
import io
import operator
import os
import threading
import weakref
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property
from pathlib import Path

import msgspec
import pytest

from millstream.batching.ticks import writer_ticker
from millstream.core.amounts import Duration
from millstream.core.cached import locked_cached_property
from millstream.core.clock import MICROSECONDS, VirtualClock
from millstream.core.message import Message
from millstream.core.metric_collection.prometheus import prometheus_text
from millstream.log import LogSpec, WriterBusyError
from millstream.mill.duplication.source_recorder import record_space
from millstream.mill.tasks import QueueName
from millstream.node import Node
from millstream.rest.app_context import AppContext
from millstream.settings import BatchingSettings, Settings, StoreSettings
from millstream.status.metrics import status_metrics
from millstream.stores import StoreUnavailableError


@pytest.mark.parametrize("name", ["data", "50% of #1? [ä]", "q?1"])
def test_a_fresh_folder_becomes_a_node(tmp_path: Path, name: str) -> None:
    with Node.open(Settings(data=str(tmp_path / "deep" / name)), create=True) as node:
        with node.logs.store.log(LogSpec("events")).writer() as writer:
            writer.append([Message(b"x")])
        cid = node.anchoring.cas.put(b"content")
        assert [entry.content_id for entry in node.stores.providers["primary"].entries("cas")] == [cid]
    assert {path.name for path in (tmp_path / "deep" / name).iterdir()} >= {"log.db", "cas"}


def test_what_the_parts_of_a_node_report_is_exposed_by_the_node(tmp_path: Path) -> None:
    with Node.open(Settings(data=str(tmp_path)), VirtualClock(7 * MICROSECONDS), create=True) as node:
        for log in ("east", "west"):
            with node.logs.store.log(LogSpec(log)).writer() as writer:
                writer.append([Message(b"x", event_time=MICROSECONDS)])
            node.batching.service(log, f"{log}.batches").step()
        lines = prometheus_text(status_metrics(AppContext(node).poller, node.metrics.figures())).splitlines()
    assert 'millstream_batching_delay_seconds_sum{log="east"} 6' in lines
    assert 'millstream_batching_open_sources{log="west"} 1' in lines
    types = [line for line in lines if line.startswith("# TYPE")]
    assert len(types) == len(set(types))


def test_copies_of_an_anchored_file_are_known_by_store(tmp_path: Path) -> None:
    with Node.open(Settings(data=str(tmp_path)), create=True) as node:
        cid = node.anchoring.cas.put(b"content")
        record_space(node.stores.providers, node.stores.manifest, "primary", "cas")
        replica = node.proofs.replicas(cid)[0]
        assert (replica.store, replica.space, replica.content_id, replica.verified_at) == ("primary", "cas", cid, None)


@pytest.mark.parametrize(
    "name",
    [
        "stores.manifest",
        "databases.own",
        "mill.repairs.repairer",
        "stores.providers",
        "anchoring.observer",
        "mill.reports.ledger",
    ],
)
def test_many_threads_get_the_same_part_of_a_node(tmp_path: Path, name: str) -> None:
    with Node.open(Settings(data=str(tmp_path)), create=True) as node, ThreadPoolExecutor(12) as pool:
        barrier = threading.Barrier(12)

        def ask(_: int) -> int:
            barrier.wait(30)
            return id(operator.attrgetter(name)(node))

        assert len(set(pool.map(ask, range(12)))) == 1


def test_what_a_node_opens_is_made_once_on_every_version_of_python(tmp_path: Path) -> None:
    with Node.open(Settings(data=str(tmp_path)), create=True) as node:
        kinds = [type(part) for part in (*vars(node.mill).values(), *vars(node).values())]
    opened = {
        (kind.__name__, name): member
        for kind in kinds
        if kind.__module__.startswith("millstream.node.")
        for name, member in vars(kind).items()
        if isinstance(member, cached_property)
    }
    assert ("LogsPart", "store") in opened
    assert ("ReportsPart", "ledger") in opened
    assert [name for name, kind in opened.items() if not isinstance(kind, locked_cached_property)] == []


def test_a_node_is_a_few_parts_of_a_few_members_each(tmp_path: Path) -> None:
    with Node.open(Settings(data=str(tmp_path)), create=True) as node:
        parts = [node, *(getattr(node, name) for name in dir(node) if name[0] != "_"), *vars(node.mill).values()]
        own = [part for part in parts if type(part).__module__.startswith("millstream.node.")]
        sizes = {type(part).__name__: len([name for name in dir(part) if not name.startswith("_")]) for part in own}
    assert {name: size for name, size in sizes.items() if size > (19 if name == "Node" else 10)} == {}


def test_a_queue_is_opened_once_and_survives_the_node(tmp_path: Path) -> None:
    settings = Settings(data=str(tmp_path))
    with Node.open(settings, create=True) as node:
        queue = node.queues.open(QueueName.REPAIR)
        assert node.queues.open(QueueName.REPAIR) is queue
        queue.put([b"task"])
        queue.lease(1, visibility=1000)
    with Node.open(settings, create=True) as node:
        assert (
            node.queues.open(QueueName.REPAIR).depth().ready + node.queues.open(QueueName.REPAIR).depth().delayed == 1
        )


def test_p10_one_writer_a_second_node_cannot_write_what_the_first_one_writes(tmp_path: Path) -> None:
    settings = Settings(data=str(tmp_path))
    with Node.open(settings, create=True) as first, Node.open(settings, create=True) as second:
        first.queues.open("tasks")
        with pytest.raises(WriterBusyError, match=f"process {os.getpid()}"):
            second.queues.open("tasks")


def test_stores_are_named_by_settings_and_lie_in_the_data_folder(tmp_path: Path) -> None:
    settings = Settings(data=str(tmp_path), stores={"one": StoreSettings("file://{data}/elsewhere")})
    with Node.open(settings, create=True) as node:
        store = node.stores.providers["one"]
        store.create_space("s")
        store.put("s", "a", io.BytesIO(b"1"))
    assert (tmp_path / "elsewhere" / "s" / "a").read_bytes() == b"1"


def test_a_store_elsewhere_that_is_not_there_is_unavailable_and_not_empty(tmp_path: Path) -> None:
    absent = tmp_path / "unmounted"
    settings = Settings(data=str(tmp_path / "data"), stores={"far": StoreSettings(f"file://{absent}")})
    with Node.open(settings, create=True) as node, pytest.raises(StoreUnavailableError):
        node.stores.providers["far"].has_space("s")
    assert not absent.exists()


def test_a_first_start_that_was_cut_short_leaves_a_node_whose_own_stores_can_be_used(tmp_path: Path) -> None:
    settings = Settings(data=str(tmp_path))
    with Node.open(settings, create=True) as first:
        first.databases.own.connect().close()  # and nothing else: it is killed here
    with Node.open(settings, create=True) as second:
        assert list(second.stores.providers["primary"].spaces()) == ["cas"]


def test_a_node_whose_disk_for_its_stores_is_gone_says_so_and_makes_no_folder_in_its_place(tmp_path: Path) -> None:
    settings = Settings(data=str(tmp_path), stores={"one": StoreSettings("file://{data}/disk")})
    with Node.open(settings, create=True) as first:
        first.stores.providers["one"].create_space("s")
    (tmp_path / "disk").rename(tmp_path / "away")
    with Node.open(settings, create=True) as second, pytest.raises(StoreUnavailableError, match="mount its disk"):
        second.stores.providers["one"].has_space("s")
    assert not (tmp_path / "disk").exists()


def test_a_node_has_the_rules_of_its_settings_with_what_is_different_for_some_sources(tmp_path: Path) -> None:
    settings = Settings(data=str(tmp_path), batching=BatchingSettings(override=({"source": "p", "window": 5},)))
    with Node.open(settings, create=True) as node:
        assert [config.window for config in node.batching.rules.configs] == [30 * 60 * MICROSECONDS, 5]


def test_a_node_forgets_batch_services_that_were_closed(tmp_path: Path) -> None:
    with Node.open(Settings(data=str(tmp_path)), VirtualClock(), create=True) as node:
        for log in ("in", "other"):
            node.logs.store.log(LogSpec(log))
        open_service = node.batching.service("other", "other.batches")
        closed = []
        for _ in range(3):
            with contextlib.closing(node.batching.service("in", "in.batches")) as service:
                closed.append(weakref.ref(service))
        last = node.batching.service("in", "in.batches")
        del service
        gc.collect()
        assert [one() for one in closed] == [None, None, None]
    assert (open_service.closed, last.closed) == (True, True)


def test_a_closed_batch_service_does_not_count_for_the_time_until_events_are_batched(tmp_path: Path) -> None:
    clock = VirtualClock(MICROSECONDS)
    slow, fast = (
        Settings(data=str(tmp_path), batching=BatchingSettings(Duration(size), Duration(5))) for size in (900, 9)
    )
    with Node.open(slow, clock, create=True) as node, node.logs.store.log(LogSpec("in")).writer() as writer:
        writer.append([Message(b"x", event_time=clock.now())])
        node.batching.service("in", "out").step()
    with Node.open(fast, clock) as node:
        own = node.batching.patience
        node.batching.change_rules("out", clock.now() + 10_000)
        with contextlib.closing(node.batching.service("in", "out")):
            assert node.batching.patience > own + 800
        assert node.batching.patience == own


def test_a_batch_service_goes_on_in_the_next_node_by_the_rules_in_the_settings(tmp_path: Path) -> None:
    settings = Settings(data=str(tmp_path), batching=BatchingSettings(Duration(50), Duration(20), max_count=2))
    clock = VirtualClock()
    for _ in range(2):
        with Node.open(settings, clock, create=True) as node, node.logs.store.log(LogSpec("in")).writer() as writer:
            writer.append([Message(b"x", f"k{number}", "pump") for number in range(6)])
            service = node.batching.service("in", "out", ticks=writer_ticker(writer))
            assert service.step() == 6
            assert not service.tick()
            clock.advance(1)
            assert service.tick()
            assert service.step() == 1
    with Node.open(settings, create=True) as node:
        messages = [message for batch in node.logs.store.log(LogSpec("out")).read() for message in batch]
    events = [msgspec.json.decode(message.body)["events"] for message in messages]
    assert sorted(events) == [[1, 2], [3, 4], [5, 6], [8, 9], [10, 11], [12, 13]]
