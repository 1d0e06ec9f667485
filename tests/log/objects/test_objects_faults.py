"""Writers, a trimmer and a reader of one log in a bucket, in memory and on servers, while requests go wrong."""

from __future__ import annotations

import pytest

from millstream.core.clock import VirtualClock
from millstream.testing.s3 import S3Server
from suite.sizes import sized
from support.bucket_run import PROCESSES, BucketPlace, BucketRun, MemoryPlace
from support.server_places import ServerPlace, lines

SEEDS = sized(quick=range(40), ci=range(400), long=range(20_000))
SERVER_SEEDS = sized(quick=range(1, 2), ci=range(2), long=range(50))
STEPS, SERVER_STEPS, SERVER_RATE = 950, 500, 0.2


@pytest.mark.parametrize("rate", [0.0, 0.1], ids=["without faults", "with faults"])
def test_p1_order_and_p2_durability_hold_for_writers_trimmers_and_readers_at_once(rate: float) -> None:
    confirmed = delivered = deleted = 0
    for seed in SEEDS:
        clock = VirtualClock()
        run, place = run_in(MemoryPlace(clock), clock, seed, rate, STEPS)
        confirmed, delivered = confirmed + len(run.confirmed), delivered + len(run.delivered)
        deleted += place.deleted
    print(f"{confirmed} commits confirmed, {delivered} blocks delivered, {deleted} objects deleted")
    assert min(confirmed, delivered, deleted) > 3 * len(SEEDS)


def run_in(
    place: BucketPlace, clock: VirtualClock, seed: int, rate: float, steps: int
) -> tuple[BucketRun, BucketPlace]:
    run = BucketRun(place, clock, seed, rate)
    run.go(steps)
    return run, place


@pytest.mark.smoke
def test_p1_order_and_p2_durability_hold_on_moto_whose_requests_go_wrong(moto: S3Server) -> None:
    run_on(moto)


def test_p1_order_and_p2_durability_hold_on_swift_whose_requests_go_wrong(swift: S3Server) -> None:
    run_on(swift)  # one request at a time: of those that create a name at the same time, several may win there


def test_p1_order_and_p2_durability_hold_on_the_versity_gateway_whose_requests_go_wrong(versitygw: S3Server) -> None:
    run_on(versitygw)


def run_on(server: S3Server) -> None:
    """Run the processes on *server*: connections break, answers are 409 and 503, and the client does what it does."""
    confirmed = delivered = deleted = 0
    with lines(server, PROCESSES) as found:
        for seed in SERVER_SEEDS:
            clock = VirtualClock()
            run, place = run_in(ServerPlace(server, found, clock), clock, seed, SERVER_RATE, SERVER_STEPS)
            confirmed, delivered = confirmed + len(run.confirmed), delivered + len(run.delivered)
            deleted += place.deleted
        faults = {fault for proxy, _ in found for fault in proxy.faults}
    print(f"{confirmed} commits confirmed, {delivered} blocks delivered, {deleted} objects deleted")
    assert min(confirmed, delivered, deleted) > len(SERVER_SEEDS)
    assert len(faults) >= 6, "requests went wrong in many ways"
