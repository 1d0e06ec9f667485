"""The probe of a bucket: one of many creators of a name wins, or no log is kept there."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from millstream.cli.main import run
from millstream.core.clock import VirtualClock
from millstream.log.backends.objects.probe import RECORD, UnfitBucketError, check_bucket, probe_bucket
from millstream.log.errors import StorageUnavailableError
from millstream.stores.s3 import parse_address
from millstream.stores.s3.log_bucket import S3LogBucket
from millstream.testing.object_bucket import BucketFault, FaultyBucket, MemoryBucket, RandomFaults
from millstream.testing.s3 import S3Server
from millstream.testing.waiting import until


class CarelessBucket(MemoryBucket):
    """Ignores the condition: whoever creates a name is told that it worked."""

    def create(self, name: str, data: bytes) -> bool:
        self.put(name, data)
        return True


class ForgetfulBucket(MemoryBucket):
    """Lets one win, and answers reads with *answer*."""

    answer: bytes | None = None

    def get(self, name: str, start: int = 0, length: int | None = None) -> bytes | None:
        return self.answer


def test_a_fit_bucket_is_probed_once_and_keeps_the_result_alone() -> None:
    bucket = MemoryBucket()
    check_bucket(bucket)
    assert bucket.requests["create"] == 50 + 8 * 8 + 9
    assert list(bucket.objects) == [RECORD]
    assert b'"creators":[50,8,8,8,8,8,8,8,8]' in bucket.objects[RECORD]
    check_bucket(bucket)
    assert bucket.requests["create"] == 50 + 8 * 8 + 9


def test_the_record_of_another_service_is_not_believed() -> None:
    first, copy = MemoryBucket(), CarelessBucket()
    check_bucket(first)
    copy.objects.update(first.objects)
    check_bucket(copy)
    copy.url = "s3://elsewhere"
    with pytest.raises(UnfitBucketError):
        check_bucket(copy)
    first.url = "s3://by-another-name"
    for url in ("s3://by-another-name", MemoryBucket().url):
        first.url = url
        check_bucket(first)
    assert first.requests["create"] == 2 * (50 + 8 * 8 + 9)


def test_the_record_says_nothing_of_who_looked_and_holds_for_others() -> None:
    bucket = MemoryBucket()
    for member in ("profile=first", "credentials=SECOND&space=photos&exclude=*.tmp"):
        bucket.url = f"s3://photos/logs?endpoint=https://storage.example:9000&region=here&{member}"
        check_bucket(bucket)
    assert bucket.requests["create"] == 50 + 8 * 8 + 9
    assert json.loads(bucket.objects[RECORD])["urls"] == ["s3://photos/logs?endpoint=https://storage.example:9000"]


def test_a_bucket_that_ignores_the_condition_is_refused_with_what_to_do() -> None:
    bucket = CarelessBucket()
    with pytest.raises(
        UnfitBucketError,
        match=r"let 50 of 50 concurrent writers create the same object.* Use a service",
    ):
        check_bucket(bucket)
    assert not bucket.objects


def test_a_bucket_that_became_unfit_loses_its_record() -> None:
    bucket = CarelessBucket()
    bucket.put(RECORD, b"{}")
    check_bucket(bucket)
    with pytest.raises(UnfitBucketError):
        probe_bucket(bucket)
    assert bucket.get(RECORD) is None


def test_only_a_condition_that_holds_later_too_is_enough() -> None:
    class BrieflyCareful(MemoryBucket):
        def create(self, name: str, data: bytes) -> bool:
            if data == b"late":
                self.put(name, data)
                return True
            return super().create(name, data)

    with pytest.raises(UnfitBucketError, match="overwrote an existing object although the PUT was conditional"):
        probe_bucket(BrieflyCareful())


@pytest.mark.parametrize(
    ("answer", "what"), [(None, "the object cannot be read"), (b"other", "the object has other content")]
)
def test_a_bucket_that_does_not_show_the_winners_bytes_is_refused(answer: bytes | None, what: str) -> None:
    bucket = ForgetfulBucket()
    bucket.answer = answer
    with pytest.raises(UnfitBucketError, match=what):
        probe_bucket(bucket)


@pytest.mark.parametrize("seed", range(5))
def test_lost_late_and_doubled_requests_do_not_make_a_bucket_unfit(seed: int) -> None:
    clock = VirtualClock()
    real = MemoryBucket(clock)
    faults = RandomFaults(seed, 0.4)

    def changes(kind: str, name: str) -> BucketFault:
        return faults(kind, name) if kind == "create" else BucketFault.NONE

    probe_bucket(FaultyBucket(real, changes, clock))
    assert RECORD in real.objects


def test_a_server_that_does_not_answer_is_not_called_unfit() -> None:
    clock = VirtualClock()

    def silent(kind: str, _: str) -> BucketFault:
        return BucketFault.LOST if kind == "create" else BucketFault.NONE

    with pytest.raises(StorageUnavailableError, match="did not answer 50 requests of the bucket test: try again"):
        probe_bucket(FaultyBucket(MemoryBucket(clock), silent, clock))


def test_moto_is_fit(moto: S3Server) -> None:
    with contextlib.closing(S3LogBucket(parse_address(moto.new_url()))) as bucket:
        check_bucket(bucket)
        assert list(bucket.list("")) == [RECORD]


def test_the_versity_gateway_is_fit(versitygw: S3Server) -> None:
    with contextlib.closing(S3LogBucket(parse_address(versitygw.new_url()))) as bucket:
        check_bucket(bucket)
        assert list(bucket.list("")) == [RECORD]


def test_swift_lets_two_win_and_is_refused(swift: S3Server) -> None:
    with contextlib.closing(S3LogBucket(parse_address(swift.new_url()))) as bucket:
        with pytest.raises(UnfitBucketError, match="concurrent writers create the same object"):
            check_bucket(bucket)
        assert list(bucket.list("")) == []


@pytest.mark.served
def test_rclone_ignores_conditions_and_is_refused(rclone: str) -> None:
    with contextlib.closing(S3LogBucket(parse_address(rclone))) as bucket:
        with pytest.raises(UnfitBucketError, match="of 50 concurrent writers create the same object"):
            check_bucket(bucket)
        assert bucket.get(RECORD) is None


@pytest.mark.served
def test_the_doctor_refuses_a_bucket_that_lets_two_win(rclone: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["doctor", "--store", rclone]) == 1
    assert "concurrent writers create the same object" in capsys.readouterr().out


def test_the_doctor_repeats_the_probe(moto: S3Server, capsys: pytest.CaptureFixture[str]) -> None:
    run(["doctor", "--store", moto.new_url()])
    assert "1 of 50 concurrent creators of a name won" in capsys.readouterr().out


@pytest.fixture
def rclone(tmp_path: Path) -> Iterator[str]:
    """The URL of a bucket of ``rclone serve s3``, which ignores the conditions of a PUT."""
    program = shutil.which("rclone")
    if program is None or b"s3" not in subprocess.run([program, "serve", "-h"], capture_output=True, check=True).stdout:
        pytest.skip("there is no rclone with `serve s3`")
    (tmp_path / "bucket").mkdir()
    with socket.socket() as chosen:
        chosen.bind(("127.0.0.1", 0))
        port = chosen.getsockname()[1]
    keys = {"RCLONE_PROBE_ACCESS_KEY_ID": "one", "RCLONE_PROBE_SECRET_ACCESS_KEY": "two"}
    with pytest.MonkeyPatch.context() as environment:
        for name, value in keys.items():
            environment.setenv(name, value)
        command = [program, "serve", "s3", "--auth-key", "one,two", "--addr", f"127.0.0.1:{port}", str(tmp_path)]
        server = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=dict(os.environ))
        try:
            until(lambda: _listens(port))
            yield f"s3://bucket/logs?endpoint=http://127.0.0.1:{port}&region=us-east-1&credentials=RCLONE_PROBE"
        finally:
            server.kill()
            server.wait()


def _listens(port: int) -> bool:
    with socket.socket() as caller:
        return caller.connect_ex(("127.0.0.1", port)) == 0
