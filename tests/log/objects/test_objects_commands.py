"""The commands on logs in a bucket, on servers."""

from __future__ import annotations

from pathlib import Path

import pytest

from millstream.cli.main import run
from millstream.log import LogInputError, LogSpec, open_store
from millstream.log.backends.objects.probe import RECORD
from millstream.stores.s3.log_bucket import open_log_bucket
from millstream.stores.tiers import open_log_store
from millstream.testing.object_bucket import MemoryBucket
from millstream.testing.s3 import S3Server
from millstream.testing.torture import TorturePlan, scratch_beside, torture
from millstream.testing.torture.scratch import ScratchStore
from support.commands import run_command


def new_store(server: S3Server) -> str:
    """The URL of a store in a bucket that counts as probed."""
    url = server.new_url()
    open_log_bucket(url).put(RECORD, b"{}")
    return url


@pytest.mark.smoke
def test_a_log_in_a_bucket_is_appended_to_read_verified_trimmed_and_copied(
    moto: S3Server, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    url = new_store(moto)

    def done(*arguments: str, stdin: bytes = b"") -> str:
        answer = run_command("log", *arguments, "--store", url, stdin=stdin)
        assert answer.code == 0, answer
        return answer.out

    done("create", "weather")
    for first in (1, 101):
        done("append", "weather", stdin=b"".join(b"message %d\n" % number for number in range(first, first + 100)))
    assert "message 100" in done("read", "weather", "--from", "100")
    assert "200 messages" in done("verify", "weather")
    assert "begins at id 150" in done("trim", "weather", "--below", "150")
    assert "51" in done("list")
    copy = f"sqlite:///{tmp_path / 'log.db'}"
    assert run(["log", "copy", url, copy, "weather"]) == 0
    assert run(["log", "copy", copy, new_store(moto), "weather"]) == 0
    assert capsys.readouterr().out.count("51 messages copied and compared, ids 150 to 200") == 2
    with open_log_store(url, read_only=True) as store:
        assert store.log(LogSpec("weather"), create=False).last_id == 200


def test_the_url_of_a_bucket_is_read_strictly() -> None:
    with pytest.raises(LogInputError, match="which are always durable"):
        open_log_store("s3://bucket/logs", durability="os")
    with pytest.raises(LogInputError, match="is unknown, empty or given twice"):
        open_log_store("s3://bucket/logs?durability=os")
    with pytest.raises(LogInputError, match="bucket_linger must be 0 to 60 seconds, not 90"):
        open_log_store("s3://bucket/logs", bucket_linger=90)
    with pytest.raises(LogInputError, match="bucket_commits must be 0 or at least 10, not 9"):
        open_log_store("s3://bucket/logs", bucket_commits=9)
    with pytest.raises(LogInputError, match="open_log_store"):
        open_store("s3://bucket/logs")


def test_a_scratch_store_in_a_bucket_is_a_prefix_of_its_own(moto: S3Server) -> None:
    url = moto.new_url()
    scratch = scratch_beside(url, "torture")
    bucket = open_log_bucket(scratch.url)
    bucket.put("logs/a", b"x")
    with pytest.raises(LogInputError, match="already exists"):
        scratch_beside(url, "torture")
    scratch.remove()
    assert list(bucket.list("")) == []


def test_p2_durability_a_log_in_a_bucket_survives_the_kills_of_its_writers_and_readers(moto: S3Server) -> None:
    url = new_store(moto)
    report = torture(ScratchStore(url, url, lambda: None), TorturePlan(1, 60.0, 7, 0))
    assert report.problems == ()
    assert report.messages_stored > 0


def test_a_writer_in_a_bucket_collects_messages_before_it_commits(monkeypatch: pytest.MonkeyPatch) -> None:
    bucket = MemoryBucket()
    bucket.put(RECORD, b"{}")
    monkeypatch.setattr("millstream.stores.s3.log_bucket.open_log_bucket", lambda _: bucket)
    for linger, commits in ((60.0, 1), (0.0, 2)):
        with open_log_store("s3://bucket", bucket_linger=linger) as store:
            with store.log(LogSpec(f"log-{commits}")).writer() as writer:
                before = len(bucket.objects)
                writer.append_nowait([b"first"])
                if not linger:
                    writer.durable(1)
                writer.append_nowait([b"second"])
            assert len(bucket.objects) - before == commits + 1  # and the lease that was released
            assert store.log(LogSpec(f"log-{commits}")).last_id == 2
