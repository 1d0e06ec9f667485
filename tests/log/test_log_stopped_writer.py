"""P10 where a writer is stopped (SIGSTOP) in the middle of a commit to files: no program can take its lock away."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from millstream.core.lock_holders import find_lock_holders
from millstream.log import LogSpec, StorageBusyError, WriterBusyError, open_store
from millstream.log.backends.segments import files
from millstream.log.backends.sqlite import backend
from millstream.testing.waiting import until, until_allowed

pytestmark = pytest.mark.crash

CHILD = Path(__file__).with_name("children") / "stopped_writer.py"
FENCED = 7
WAIT = 0.5


@pytest.fixture(params=["sqlite", "segments"])
def url(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setattr(backend, "_WAIT", WAIT)
    monkeypatch.setattr(files, "_WAIT", WAIT)
    return f"{request.param}:///{tmp_path / 'log'}"


def locked(url: str) -> list[Path]:
    """The files that may be locked."""
    path = Path("/" + url.partition(":///")[2].lstrip("/"))
    return [*path.rglob("*"), *path.parent.glob("log*")]


@pytest.mark.smoke
def test_p10_one_writer_one_that_is_stopped_in_a_commit_is_named_and_once_woken_can_be_replaced(url: str) -> None:
    command = [sys.executable, str(CHILD), url]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as child:
        try:
            assert child.stdin and child.stdout
            assert child.stdout.readline() == "written\n"
            until(
                lambda: any(found.stopped for found in find_lock_holders(locked(url))),
                "the writer stopped with its lock",
            )
            with open_store(url, lease_seconds=1.0) as store:
                log = store.log(LogSpec("weather"), create=False)
                message = f"process {child.pid} .*is stopped.*kill -CONT {child.pid}.*then try again"
                for _ in range(2):
                    with pytest.raises(StorageBusyError, match=message) as caught:
                        until_allowed(log.writer, WriterBusyError)
                    assert caught.value.exit_code == 4
                assert [message.body for batch in log.read() for message in batch] == [b"first"], "readers go on"
                child.send_signal(signal.SIGCONT)
                assert child.stdout.readline() == "written\n"
                with until_allowed(log.writer, WriterBusyError) as writer:
                    writer.append([b"ours"])
                    child.stdin.write("go on\n")
                    child.stdin.flush()
                    assert child.wait(60) == FENCED
                bodies = [message.body for batch in log.read() for message in batch]
                assert bodies == [b"first", b"in the middle", b"ours"]
                assert log.verify().ok
        finally:
            child.kill()
