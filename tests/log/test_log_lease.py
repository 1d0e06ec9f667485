"""The lease on a virtual clock: when a writer may take over, and when not."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from millstream.core import processes
from millstream.core.clock import VirtualClock
from millstream.core.processes import find_process
from millstream.log import FencedError, Log, LogSpec, LogStore, WriterBusyError
from millstream.log.backend import Head
from millstream.log.backends.memory import MemoryBackend
from millstream.log.runtime.lease_holder import LeaseHolder, this_holder

LEASE = 10.0


@pytest.fixture
def clock() -> VirtualClock:
    return VirtualClock()


@pytest.fixture
def backend(clock: VirtualClock) -> MemoryBackend:
    return MemoryBackend(clock)


@pytest.fixture
def log(backend: MemoryBackend, clock: VirtualClock) -> Iterator[Log]:
    with LogStore(backend, clock, lease_seconds=LEASE) as store:
        yield store.log(LogSpec("weather"))


def hold(backend: MemoryBackend, clock: VirtualClock, holder: LeaseHolder) -> None:
    """Let *holder* have the lease, for ten seconds."""
    until = backend.lease_time() + int(LEASE * 1e6)
    assert backend.take_lease(
        "weather", epoch=backend.head("weather").epoch, holder=msgspec.json.encode(holder), until=until
    )


def test_a_living_holder_keeps_others_out_until_its_lease_runs_out(
    log: Log, backend: MemoryBackend, clock: VirtualClock
) -> None:
    hold(backend, clock, this_holder(clock.now()))
    clock.advance(LEASE - 1)
    with pytest.raises(WriterBusyError, match=r"free in 1\.0 seconds"):
        log.writer()
    clock.advance(1)
    with log.writer() as writer:
        writer.append([b"a"])


def test_a_holder_that_is_not_one_of_ours_keeps_others_out_as_well(
    log: Log, backend: MemoryBackend, clock: VirtualClock
) -> None:
    until = backend.lease_time() + int(LEASE * 1e6)
    assert backend.take_lease("weather", epoch=0, holder=b"someone", until=until)
    with pytest.raises(WriterBusyError, match="is being written by an unknown process"):
        log.writer()
    clock.advance(LEASE)
    log.writer().close()


def test_a_lease_is_kept_alive_while_its_writer_idles(log: Log, backend: MemoryBackend, clock: VirtualClock) -> None:
    with log.writer() as writer:
        until = backend.head("weather").lease_until
        clock.advance(LEASE / 2)
        writer._renew()  # the housekeeper calls it on its own thread; here we do not want to wait for that
        assert backend.head("weather").lease_until > until


def test_setting_the_wall_clock_neither_ends_a_lease_nor_prolongs_it(
    log: Log, backend: MemoryBackend, clock: VirtualClock
) -> None:
    hold(backend, clock, this_holder(clock.now()))
    clock.jump(7200)
    with pytest.raises(WriterBusyError):
        log.writer()
    clock.jump(-14_400)
    clock.advance(LEASE)
    log.writer().close()


def test_receive_times_do_not_go_back_when_the_clock_does(log: Log, clock: VirtualClock) -> None:
    with log.writer() as writer:
        writer.append([b"a"])
        clock.jump(-3600)
        writer.append([b"b"])
    clock.jump(-3600)
    with log.writer() as writer:
        writer.append([b"c"])
    times = [m.received_at for batch in log.read() for m in batch]
    assert len(set(times)) == 1


@pytest.mark.parametrize(
    ("changes", "gone"),
    [
        ({}, False),
        ({"started": 1}, True),
        ({"pid": 2**22 + 1}, True),
        ({"boot": "another boot of this machine"}, True),
        ({"namespace": "pid:[1]", "started": 1}, False),
    ],
    ids=["this process", "its number was given to another", "no such process", "rebooted", "in another container"],
)
def test_only_a_holder_that_is_certainly_dead_is_replaced_at_once(
    log: Log, backend: MemoryBackend, clock: VirtualClock, changes: dict[str, object], gone: bool
) -> None:
    hold(backend, clock, msgspec.structs.replace(this_holder(clock.now()), **changes))
    if gone:
        log.writer().close()
    else:
        with pytest.raises(WriterBusyError):
            log.writer()


def test_a_holder_on_another_host_is_not_judged_by_this_host_s_boot() -> None:
    elsewhere = msgspec.structs.replace(this_holder(0), boot="another machine")
    assert elsewhere.is_gone(one_host=True)
    assert not elsewhere.is_gone(one_host=False)


def test_a_holder_that_proc_hides_is_gone_only_if_its_number_is_nobodys(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with subprocess.Popen(["sleep", "60"]) as child:
        found = find_process(child.pid)
        assert found is not None
        holder = msgspec.structs.replace(this_holder(0), pid=child.pid, started=found.started)
        monkeypatch.setattr(processes, "_PROC", tmp_path)  # as with the mount option hidepid=2
        assert not holder.is_gone(one_host=False)
        child.kill()
    assert holder.is_gone(one_host=False)


def test_the_refusal_names_host_process_and_time(log: Log, clock: VirtualClock) -> None:
    with log.writer(), pytest.raises(WriterBusyError) as caught:
        log.writer()
    assert f"process {os.getpid()} on {os.uname().nodename} since 2023-11-14 22:13:20 UTC" in str(caught.value)
    assert caught.value.exit_code == 4


def test_a_replaced_writer_is_fenced_at_its_next_append_and_at_its_next_renewal(
    log: Log, backend: MemoryBackend, clock: VirtualClock
) -> None:
    first = log.writer()
    backend.release_lease("weather", epoch=1)
    second = log.writer()
    second.append([b"second"])
    with pytest.raises(FencedError):
        first.append([b"first"])
    backend.release_lease("weather", epoch=2)
    third = log.writer()
    second._renew()
    with pytest.raises(FencedError):
        second.append([b"second"])
    for writer in (first, second, third):
        writer.close()
    assert [m.body for batch in log.read() for m in batch] == [b"second"]


def test_several_logs_of_a_store_have_writers_at_once(backend: MemoryBackend, clock: VirtualClock) -> None:
    with LogStore(backend, clock) as store:
        writers = [store.log(LogSpec(name)).writer() for name in ("a", "b", "c")]
        for number, writer in enumerate(writers):
            writer.append([b"x"] * (number + 1))
        assert [store.log(LogSpec(name)).last_id for name in ("a", "b", "c")] == [1, 2, 3]
        for writer in writers:
            writer.close()


class CountingBackend(MemoryBackend):
    """Counts the reads of heads, each of which is a query of a database."""

    heads = 0

    def head(self, log: str) -> Head:
        self.heads += 1
        return super().head(log)


def test_the_status_of_a_log_reads_its_head_twice_at_most(clock: VirtualClock) -> None:
    backend = CountingBackend(clock)
    with LogStore(backend, clock, lease_seconds=LEASE) as store:
        log = store.log(LogSpec("weather"))
        with log.writer() as writer:
            writer.append([b"a"])
            backend.heads = 0
            assert log.info().writer is not None
            assert backend.heads <= 2, "for itself, and for the tier of the log"
        assert log.info().writer is None
