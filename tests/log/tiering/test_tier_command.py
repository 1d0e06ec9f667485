"""`millstream log tier`: moving, showing and clearing up, in words."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from hashlib import sha256
from io import BytesIO
from pathlib import Path

import pytest

from millstream.cli import main
from millstream.log import Log, StorageUnavailableError, Tiering, open_store
from millstream.stores import open_provider
from millstream.stores.tiers import TierSpace
from millstream.stores.tiers import open_log_store as open_tiered
from millstream.testing.faulty_store import LostReplyStore
from support.tiered_logs import SPEC, URL, Cloud, bodies, fill, ids_of


def test_what_a_killed_run_left_behind_is_listed_and_stays(open_log: Callable[[], Log], cloud: Cloud) -> None:
    log = fill(open_log())
    log.set_tiering(Tiering(URL, segment_bytes=8000))
    cloud.store = LostReplyStore(cloud.real, 1, lambda call: call.method == "put")
    with pytest.raises(StorageUnavailableError):
        log.move_blocks()
    cloud.store = cloud.real
    (left,) = cloud.names()
    log.set_tiering(Tiering(URL, segment_bytes=12_000))
    log.move_blocks()
    assert log.leftovers() == [left]
    assert left in cloud.names()
    kept = [name for name in cloud.names() if name != left]
    assert log.remove_leftovers() == [left]
    assert (cloud.names(), log.leftovers(), log.verify(deep=True).ok) == (kept, [], True)


def test_the_command_lists_what_is_left_over_and_removes_it_when_it_is_told_to(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    url = f"sqlite:///{tmp_path / 'log.db'}"
    with open_tiered(url) as store:
        log = fill(store.log(SPEC))
        assert main.run(["log", "tier", "weather", "--store", url, "--leftovers"]) == 2
        assert "has no tier" in capfd.readouterr().err
        log.set_tiering(Tiering(f"file://{tmp_path / 'cold'}", segment_bytes=8000))
        log.move_blocks()
        assert log.tiering is not None
        left, kept = f"{log.tiering.folder}/{1:020d}-{2:020d}.tier", ids_of(log)
    data = b"of a run that was killed"
    TierSpace(open_provider(f"file://{tmp_path / 'cold'}")).put(left, BytesIO(data), sha256=sha256(data).hexdigest())

    def run(*options: str) -> tuple[str, str]:
        assert main.run(["log", "tier", "weather", "--store", url, *options]) == 0
        return capfd.readouterr()

    assert run("--leftovers") == (f"{left}\n", "weather: 1 object left over\n")
    assert json.loads(run("--leftovers", "--json")[0]) == {"log": "weather", "leftovers": [left], "removed": False}
    assert run("--remove-leftovers") == (f"{left}\n", "weather: 1 object removed\n")
    assert run("--leftovers") == ("", "weather: 0 objects left over\n")
    with open_tiered(url, read_only=True) as store:
        assert ids_of(store.log(SPEC, create=False)) == kept


def test_the_command_moves_messages_and_says_where_they_are(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    url = f"sqlite:///{tmp_path / 'log.db'}"
    with open_store(url) as store:
        fill(store.log(SPEC))

    def run(*arguments: str, code: int = 0) -> str:
        assert main.run(["log", *arguments, "--store", url]) == code
        return "".join(capfd.readouterr())

    assert "log weather has no tier yet: give the URL of its object store with --to" in run("tier", "weather", code=2)
    out = run("tier", "weather", "--to", "file:cold", "--segment-bytes", "8kB", "--keep-bytes", "4kB")
    assert re.search(r"1\d0 messages moved in \d objects", out)
    assert f"file://{tmp_path}/cold" in out
    assert "0 messages moved" in run("tier", "weather")
    assert "moved in 1 object" in run("tier", "weather", "--partial", "--keep-bytes", "0")
    assert json.loads(run("describe", "weather", "--json"))["tier"]["last_id"] == 200
    assert "objects at file://" in run("describe", "weather")
    assert run("read", "weather", "--from", "7", "--max", "1") == f"{bodies(7, 7)[0].decode()}\n"
    assert "0 messages in 0 blocks checked" in run("verify", "weather")
    assert "200 messages in 20 blocks checked" in run("verify", "weather", "--deep")
    assert "begins at id 150" in run("trim", "weather", "--below", "150")
    assert "weather: 0 messages trimmed, 0 messages moved" in run("upkeep")
    victim = next((tmp_path / "cold").rglob("*.tier"))
    victim.unlink()
    assert "does not exist" in run("verify", "weather", code=1)
