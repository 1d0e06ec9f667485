"""Buckets for logs: in memory, on servers, and with requests that go wrong."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from botocore.exceptions import ClientError, ConnectionClosedError, ReadTimeoutError

from millstream.core.clock import MICROSECONDS, VirtualClock
from millstream.core.retry import RetryPolicy
from millstream.log.backends.objects.bucket import Bucket, UnknownOutcomeError
from millstream.log.backends.objects.creating import create_object
from millstream.log.backends.objects.server_clock import ServerClock
from millstream.log.errors import LogInputError, StorageError, StorageUnavailableError
from millstream.stores.s3 import parse_address
from millstream.stores.s3.log_bucket import S3LogBucket, open_log_bucket
from millstream.testing.log_buckets import BucketConformance
from millstream.testing.object_bucket import BucketFault, FaultyBucket, MemoryBucket, RandomFaults
from millstream.testing.s3 import FaultyClient, S3Server


class TestMemoryBucket(BucketConformance):
    @pytest.fixture
    def bucket(self) -> Bucket:
        return MemoryBucket()


@pytest.mark.smoke
class TestMotoBucket(BucketConformance):
    @pytest.fixture
    def bucket(self, moto: S3Server) -> Bucket:
        return S3LogBucket(parse_address(moto.new_url()), client=moto.client)


@pytest.mark.smoke
class TestSwiftBucket(BucketConformance):
    creates_atomically = False

    @pytest.fixture
    def bucket(self, swift: S3Server) -> Bucket:
        return S3LogBucket(parse_address(swift.new_url()), client=swift.client)


class TestVersityGatewayBucket(BucketConformance):
    @pytest.fixture
    def bucket(self, versitygw: S3Server) -> Bucket:
        return S3LogBucket(parse_address(versitygw.new_url()), client=versitygw.client)


class ScriptedClient:
    """An S3 client whose calls all have the outcome *outcome*; counts them."""

    def __init__(self, outcome: Callable[[], Exception]) -> None:
        self.outcome, self.calls = outcome, 0

    def __getattr__(self, operation: str) -> Callable[..., object]:
        def call(**_: object) -> object:
            self.calls += 1
            raise self.outcome()

        return call


def status(code: str, number: int) -> Callable[[], Exception]:
    answer = {"Error": {"Code": code, "Message": "no"}, "ResponseMetadata": {"HTTPStatusCode": number}}
    return lambda: ClientError(answer, "PutObject")  # type: ignore[arg-type]


def scripted(outcome: Callable[[], Exception]) -> tuple[S3LogBucket, ScriptedClient]:
    client = ScriptedClient(outcome)
    policy = RetryPolicy(attempts=3)
    address = parse_address("s3://bucket/logs")
    return S3LogBucket(address, clock=VirtualClock(), retries=policy, client=client), client  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "outcome",
    [
        status("ConditionalRequestConflict", 409),
        status("SlowDown", 503),
        status("InternalError", 500),
        lambda: ConnectionClosedError(endpoint_url="http://x"),
    ],
)
def test_a_create_without_an_answer_is_sent_once_and_its_outcome_is_unknown(outcome: Callable[[], Exception]) -> None:
    bucket, client = scripted(outcome)
    with pytest.raises(UnknownOutcomeError):
        bucket.create("commits/1", b"x")
    assert client.calls == 1


def test_reads_are_tried_again_a_few_times() -> None:
    bucket, client = scripted(status("SlowDown", 503))
    for request in (lambda: bucket.get("a"), lambda: bucket.put("a", b""), lambda: bucket.delete(["a"])):
        client.calls = 0
        with pytest.raises(StorageUnavailableError):
            request()
        assert client.calls == 3


def test_a_server_that_leaves_requests_without_an_answer_is_not_waited_for_several_times() -> None:
    clock = VirtualClock()

    def hang() -> Exception:
        clock.advance(60)
        return ReadTimeoutError(endpoint_url="http://x")

    client = ScriptedClient(hang)
    bucket = S3LogBucket(parse_address("s3://bucket/logs"), clock=clock, client=client)  # type: ignore[arg-type]
    with pytest.raises(StorageUnavailableError):
        bucket.get("a")
    assert client.calls == 1
    client.calls = 0
    with pytest.raises(StorageUnavailableError):
        create_object(bucket, "a", b"x", clock)
    assert client.calls == 2  # the create, and a look whether it was done


@pytest.mark.parametrize("date", ["", "today", "Mon, 30 Feb 2026 25:61:00 GMT"])
def test_an_answer_whose_date_cannot_be_read_is_an_answer(date: str) -> None:
    class Client:
        def put_object(self, **_: object) -> object:
            return {"ResponseMetadata": {"HTTPHeaders": {"date": date}}}

    bucket = S3LogBucket(parse_address("s3://bucket/logs"), clock=VirtualClock(), client=Client())  # type: ignore[arg-type]
    assert bucket.create("a", b"x")


def test_what_the_server_refuses_is_no_unknown_outcome() -> None:
    bucket, client = scripted(status("AccessDenied", 403))
    with pytest.raises(StorageError, match="grant the user of these credentials the right") as caught:
        bucket.create("a", b"x")
    assert not isinstance(caught.value, StorageUnavailableError)
    client.outcome = status("NoSuchBucket", 404)
    with pytest.raises(StorageError, match="create the bucket, or correct the URL"):
        bucket.create("a", b"x")


@pytest.mark.smoke
def test_a_lost_reply_of_a_server_leaves_the_object(moto: S3Server) -> None:
    def lose(operation: str, when: str) -> None:
        if (operation, when) == ("put_object", "after"):
            raise ConnectionClosedError(endpoint_url="http://x")

    bucket = S3LogBucket(parse_address(moto.new_url()), client=FaultyClient(moto.client, lose))  # type: ignore[arg-type]
    with pytest.raises(UnknownOutcomeError):
        bucket.create("a", b"x")
    assert bucket.get("a") == b"x"


def test_urls_of_log_stores_are_those_of_stores() -> None:
    url = "s3://bucket/prefix?endpoint=http://127.0.0.1:1&credentials=X"
    assert open_log_bucket(url).url == url
    for wrong in ("s3://", "s3://bucket/x?what=1", "s3://bucket?space=x"):
        with pytest.raises(LogInputError):
            open_log_bucket(wrong)
    with pytest.raises(LogInputError) as caught:
        open_log_bucket("s3://user:secret@bucket/x")
    assert "secret" not in str(caught.value)


def test_the_clock_of_a_server_follows_its_dates_and_never_goes_back() -> None:
    clock = VirtualClock(start=500 * MICROSECONDS)
    server = ServerClock(clock)
    server.observe(1000 * MICROSECONDS)
    clock.advance(2.5)
    assert server.now() == 1002_500_000
    server.observe(1002 * MICROSECONDS)  # an answer with an older date than was known
    assert server.now() == 1002_500_000
    server.observe(1003 * MICROSECONDS)
    assert server.now() == 1003 * MICROSECONDS
    clock.advance(700)
    assert server.now() == 1703 * MICROSECONDS
    server.observe(1600 * MICROSECONDS)  # the server's clock was set back, or ours runs fast
    assert server.now() == 1703 * MICROSECONDS
    clock.advance(200)
    assert server.now() == 1800 * MICROSECONDS


def test_each_fault_does_what_it_says() -> None:
    clock = VirtualClock()
    real = MemoryBucket(clock)
    faults = iter(
        [
            BucketFault.LOST,
            BucketFault.REPLY_LOST,
            BucketFault.LATE,
            BucketFault.NONE,
            BucketFault.NONE,
            BucketFault.NONE,
            BucketFault.CONFLICT,
        ]
    )
    bucket = FaultyBucket(real, lambda *_: next(faults, BucketFault.NONE), clock, delay=2)
    for name, is_there in (("lost", False), ("reply", True), ("late", False)):
        with pytest.raises(UnknownOutcomeError):
            bucket.create(name, b"x")
        assert (name in real.objects) == is_there
    assert bucket.get("late") is None
    assert bucket.get("late") == b"x"
    assert not bucket.create("late", b"y")
    with pytest.raises(UnknownOutcomeError):
        bucket.create("conflict", b"x")
    assert "conflict" not in real.objects


def test_a_doubled_request_is_done_again_later() -> None:
    real = MemoryBucket()
    faults = iter([BucketFault.DOUBLED])
    bucket = FaultyBucket(real, lambda *_: next(faults, BucketFault.NONE), VirtualClock(), delay=2)
    assert bucket.create("a", b"x")
    bucket.delete(["a"])
    assert bucket.get("a") == b"x"


def test_faults_are_drawn_from_a_seed() -> None:
    scripts = [RandomFaults(7, 0.5) for _ in range(2)]
    drawn = [[str(script("create", "x")) for _ in range(50)] for script in scripts]
    assert drawn[0] == drawn[1]
    assert len(set(drawn[0])) > 4
