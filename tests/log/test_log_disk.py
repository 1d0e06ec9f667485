"""Real processes on a disk that forgets what was not synced, fails, is slow, or is full."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millstream.log import LogSpec, open_store
from millstream.testing.disk import DiskFaults, Recording
from millstream.testing.torture import LOG, WatchedProcess
from millstream.testing.torture.checks import check_confirmed, read_confirmed
from millstream.testing.torture.writer import FAILED
from suite.sizes import examples
from support.recorded_disk import record_disk
from support.small_disk import small_disk

HERE = Path(__file__).parent
WRITER = "millstream.testing.torture.writer"
PACKS, PACK = 16, 20

Scenario = Callable[..., "subprocess.CompletedProcess[str]"]


# The power is lost


@pytest.fixture(scope="session")
def recording(shim: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Recording]:
    """What a writer to SQLite did to its disk, through a checkpoint in the middle and one at the end."""
    return record_disk(shim, tmp_path_factory.mktemp("recorded"), HERE / "recorded_writer.py", PACKS)


def test_the_recording_has_what_the_process_left(recording: tuple[Path, Recording], tmp_path: Path) -> None:
    store, recorded = recording
    assert {change.kind for change in recorded.changes} == {"w", "t", "u", "s", "e"}
    recorded.image(tmp_path, store, len(recorded.changes), random.Random(0))
    assert (tmp_path / "log.db").read_bytes() == (store / "log.db").read_bytes()
    assert not (tmp_path / "log.db-wal").exists()


@examples(ci=50, long=1000)
@given(share=st.floats(0, 1), seed=st.integers(0, 2**32))
def test_p2_durability_nothing_confirmed_is_lost_when_the_power_is(
    recording: tuple[Path, Recording], share: float, seed: int
) -> None:
    store, recorded = recording
    moment = round(share * len(recorded.changes))
    notes = [change.data for change in recorded.changes[:moment] if change.path.name == "confirmed"]
    confirmed = int(notes[-1]) if notes else 0
    with tempfile.TemporaryDirectory(prefix="millstream-power-") as name:
        folder = Path(name)
        recorded.image(folder, store, moment, random.Random(seed))
        with open_store(f"sqlite:///{folder / 'log.db'}") as opened:
            log = opened.log(LogSpec("weather"))
            with log.writer("p") as writer:
                found = [message.body.split(b" ", 2)[:2] for batch in log.read() for message in batch]
                assert found == [[b"%d" % (n // PACK + 1), b"%d" % (n % PACK)] for n in range(len(found))]
                assert len(found) == PACK * writer.sequence
                assert writer.sequence in {confirmed, confirmed + 1}
                writer.append([b"next"])
            assert log.verify().ok


# A sync fails, or takes long


@pytest.mark.parametrize(("scheme", "number"), [("sqlite", 16), ("sqlite", 29), ("segments", 20), ("segments", 29)])
def test_a_sync_that_fails_stops_the_writer_and_what_was_confirmed_is_on_the_disk(
    shim: Path, tmp_path: Path, scheme: str, number: int
) -> None:
    """The kernel forgets what it could not write: whoever syncs again and goes on has confirmed what is lost."""
    folder, journal, image = tmp_path / "store", tmp_path / "journal", tmp_path / "image"
    folder.mkdir()
    done = _write(f"{scheme}:///{folder / 'log'}", DiskFaults(folder, journal, fail_sync=number).environment(shim))
    assert done.returncode == FAILED, done.stderr
    assert "open a new one" in done.stderr
    recorded = Recording(journal)
    assert max(step.offset for step in recorded.changes if step.kind == "s") < number + 6, "it gave up"
    if scheme == "segments":
        image = folder  # what is beyond the pointer there is cut off by the next writer
    else:
        recorded.image(image, folder, len(recorded.changes), random.Random(0))
    with open_store(f"{scheme}:///{image / 'log'}") as store:
        log = store.log(LogSpec(LOG), create=False)
        confirmed = read_confirmed(1, done.stdout.splitlines())
        assert list(check_confirmed(log, confirmed)) == []
        with log.writer() as writer:
            assert writer.append([b"after"]) is not None
        assert log.verify().ok


@pytest.mark.parametrize("scheme", ["sqlite", "segments"])
def test_a_disk_that_is_slower_than_the_lease_loses_nothing(shim: Path, tmp_path: Path, scheme: str) -> None:
    url = f"{scheme}:///{tmp_path / 'log'}"
    environment = DiskFaults(tmp_path, slow_ms=200).environment(shim)
    with WatchedProcess(WRITER, url, 1, 50, 0.3, 1, environment=environment) as writer:
        assert writer.wait_for(4)
    with open_store(url) as store:
        log = store.log(LogSpec(LOG), create=False)
        confirmed = read_confirmed(1, writer.lines)
        assert len(confirmed) >= 3
        assert list(check_confirmed(log, confirmed)) == []
        assert log.verify().ok


def _write(url: str, environment: Mapping[str, str]) -> subprocess.CompletedProcess[str]:
    """A writer that ends by itself."""
    command = [sys.executable, "-m", WRITER, url, "1", "50", "15", "1"]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=120)


# The disk is full


@pytest.mark.parametrize(("scheme", "kind"), [("sqlite", "bytes"), ("segments", "bytes"), ("segments", "files")])
def test_a_full_disk_stops_the_writer_and_once_there_is_room_the_next_one_goes_on(
    tmp_path: Path, scheme: str, kind: str
) -> None:
    options = "size=10m" if kind == "bytes" else "size=100m,nr_inodes=40"
    command = [*small_disk(tmp_path, options), str(HERE / "full_disk.py"), str(tmp_path), scheme, kind]
    done = subprocess.run(
        [*command, str(tmp_path), scheme, kind], capture_output=True, text=True, check=False, timeout=120
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["cause"] == "StorageFullError"
    assert "free some" in found["told"]
    assert found["confirmed"] > 0
    assert found["readable"] == found["last_before"] == found["confirmed"], "nothing of the failed commit is there"
    assert found["last_after"] == found["confirmed"] + 10
    assert found["ok_while_full"]
    assert found["ok"]


@pytest.mark.parametrize("scheme", ["sqlite", "segments"])
def test_on_a_full_disk_trimming_is_the_way_out_and_nobody_is_kept_waiting(tmp_path: Path, scheme: str) -> None:
    child = str(HERE / "children" / "way_out.py")
    command = [*small_disk(tmp_path, "size=100m"), child, str(tmp_path), scheme]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert (found["told"], found["writer"]) == ("StorageFullError", None), "a closed writer keeps no lease"
    assert found["acknowledged"] == 20
    assert found["freed"] > 20_000_000
    assert (found["first_id"], found["readable"]) == (found["confirmed"] // 2, found["confirmed"] // 2 + 1)
    assert (found["appended"], found["ok"], found["writer_after"]) == (found["confirmed"] + 1, True, None)


@pytest.mark.parametrize("scheme", ["sqlite", "segments"])
def test_a_disk_that_becomes_read_only_is_read_and_refuses_the_rest_by_name(tmp_path: Path, scheme: str) -> None:
    child, archive = HERE / "children" / "read_only_disk.py", HERE / "kept" / f"format-1-{scheme}.tar.xz"
    command = [*small_disk(tmp_path, "size=100m"), str(child), str(tmp_path), scheme, str(archive)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    expected = {"read": 100, "ok": True, "writer": None, "refused": ["StorageReadOnlyError"] * 4}
    assert (found["read_only"], found["default"]) == (expected, expected)
    assert "system:ledger" in found["former"]
    assert (found["after"], found["killed_after"]) == (101, 10)
    if scheme == "segments":
        assert found["killed"] == 10
    else:
        assert found["killed"].startswith("StorageReadOnlyError: ")
        assert "log-killed-wal contains commits that are not in log-killed yet" in found["killed"]


@pytest.mark.parametrize(("name", "room"), [("mariadb", "260m"), ("postgresql", "130m")])
def test_a_server_whose_real_disk_is_full_loses_nothing_and_goes_on_once_there_is_room(
    request: pytest.FixtureRequest, name: str, room: str
) -> None:
    request.getfixturevalue(name)
    if os.geteuid() != 0 and name == "postgresql":
        pytest.skip("PostgreSQL does not run as root, and only root gets a disk of his own without being it")
    with tempfile.TemporaryDirectory(prefix="millstream-full-") as disk:
        Path(disk).chmod(0o755)  # the server has an account of its own
        command = [*small_disk(Path(disk), f"size={room},mode=755"), str(HERE / "full_server.py")]
        command += [disk, name, "torture"]
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=200)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["server"] in {"died", "hangs"} or found["failures"][0] == "StorageFullError"
    assert found["before"] > 5
    assert found["after"] >= 5
    assert found["confirmed"] <= found["stored"] <= found["confirmed"] + 1
    assert found["dense"]
    assert found["ok"]
