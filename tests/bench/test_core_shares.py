"""Processes with a share of a core: a control group holds them back, and is gone afterwards."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from millstream.bench.core_shares import core_shares
from millstream.core.errors import InputError

SPIN = """
import sys, time
sys.stdin.readline()
begin, used = time.monotonic(), time.process_time()
while time.process_time() - used < 0.2:
    pass
print(time.monotonic() - begin)
"""


def groups() -> set[Path]:
    return {
        path
        for root in ("/sys/fs/cgroup", "/sys/fs/cgroup/cpu")
        for path in Path(root).glob(f"millstream-{os.getpid()}-*")
    }


def test_a_process_gets_its_share_and_no_group_stays() -> None:
    with subprocess.Popen([sys.executable, "-c", SPIN], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        try:
            with core_shares([child.pid], 0.25):
                assert len(groups()) == 1
                out, _ = child.communicate(b"\n")
        except InputError as error:
            child.kill()
            pytest.skip(str(error))
    assert float(out) >= 0.6, "0.2 s of processor time take four times as long"
    assert groups() == set()


def test_a_process_that_is_not_there_is_an_error_that_says_what_is_needed() -> None:
    with pytest.raises(InputError, match="as root, on a system with the cgroup"), core_shares([2**22 + 1], 0.5):
        pass
    assert groups() == set()
