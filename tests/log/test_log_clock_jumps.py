"""Real processes whose wall clock jumps for days, forwards and back: nothing confirmed is lost, no lease is taken."""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from millstream.log import LogSpec, WriterBusyError, open_store
from millstream.testing.services import LocalServerMissingError
from millstream.testing.torture import LOG, WatchedProcess
from millstream.testing.torture.checks import OrderCheck, check_confirmed, read_confirmed
from suite.missing import end_without
from suite.sizes import sized

pytestmark = pytest.mark.crash

WRITER = "millstream.testing.torture.writer"
JUMPS = ["+0", "+400d", "-400d", "+1h", "-1h", "+2s", "-20y"]


@pytest.fixture
def set_clock(tmp_path: Path) -> Callable[[str], None]:
    """Lets the wall clock of processes in :func:`fake_time` be so far from the true one from now on."""

    def set_to(offset: str) -> None:
        (tmp_path / "clock.new").write_text(offset + "\n")
        (tmp_path / "clock.new").rename(tmp_path / "clock")

    set_to("+0")
    return set_to


@pytest.fixture
def fake_time(tmp_path: Path) -> Mapping[str, str]:
    """The environment of processes with such a clock; the one that only counts seconds is the true one."""
    library = next(Path("/usr/lib").glob("*/faketime/libfaketimeMT.so.1"), None)
    if library is None:
        end_without(LocalServerMissingError("libfaketime is not installed: apt-get install faketime"))
    return {
        **os.environ,
        "LD_PRELOAD": str(library),
        "FAKETIME_TIMESTAMP_FILE": str(tmp_path / "clock"),
        "FAKETIME_NO_CACHE": "1",
        "FAKETIME_DONT_FAKE_MONOTONIC": "1",
    }


@pytest.mark.smoke
@pytest.mark.long
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("scheme", ["sqlite", "segments"])
def test_p2_durability_nothing_confirmed_is_lost_however_the_clock_jumps(
    tmp_path: Path, scheme: str, set_clock: Callable[[str], None], fake_time: Mapping[str, str]
) -> None:
    url, draw, order = f"{scheme}:///{tmp_path / 'log'}", random.Random(16), OrderCheck()
    confirmed = []
    for run in range(1, sized(quick=3, ci=10, long=100) + 1):
        set_clock(draw.choice(JUMPS))
        with WatchedProcess(WRITER, url, run, 5, 15, 1, environment=fake_time) as writer:
            assert writer.wait_for(3), writer.errors
            for jump in draw.sample(JUMPS, 3):
                set_clock(jump)
                assert writer.wait_for(len(writer.lines) + 3), writer.errors
                with open_store(url) as store, pytest.raises(WriterBusyError):
                    store.log(LogSpec(LOG)).writer()
        confirmed += read_confirmed(run, writer.lines)
    with open_store(url) as store:
        log = store.log(LogSpec(LOG))
        assert list(order.check(log)) == []
        assert list(check_confirmed(log, confirmed)) == []
        assert log.verify().ok
        times = [message.received_at for batch in log.read() for message in batch]
        assert times == sorted(times), "what is received later bears no earlier time, whatever the clock says"
        assert times[-1] - times[0] > 300 * 86_400 * 1_000_000, "the clock did jump"
