"""The collector of cycles and the turns of threads, in blocks and in servers."""

from __future__ import annotations

import gc
import subprocess
import sys

import pytest

from millstream.cli.mill.processes_option import processes_option
from millstream.core.interpreter import collecting_seldom
from millstream.settings import Settings


def test_the_collector_looks_seldom_in_the_block_and_as_before_after_it() -> None:
    before = gc.get_threshold()
    with pytest.raises(RuntimeError), collecting_seldom():
        assert gc.get_threshold() == (50_000, *before[1:])
        with collecting_seldom():
            assert gc.get_threshold() == (50_000, *before[1:])
        raise RuntimeError
    assert gc.get_threshold() == before


def test_commands_with_processes_for_small_files_collect_seldom() -> None:
    seen = list[int]()

    @processes_option
    def command(settings: Settings) -> int:
        seen.append(gc.get_threshold()[0])
        return 0

    before = gc.get_threshold()
    assert command(Settings(), processes=None) == 0
    assert (seen, gc.get_threshold()) == ([50_000], before)


def test_a_server_never_looks_again_at_what_was_loaded_before() -> None:
    code = """
import gc
from millstream.core.interpreter import collect_for_requests
loaded = [[n] for n in range(100_000)]
loaded[0].append(loaded)
collect_for_requests()
print(len(gc.get_objects()) < 100_000 <= gc.get_freeze_count(), gc.get_threshold()[0])
"""
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.split() == ["True", "10000"]


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="the GNU C library keeps what is freed")
def test_freed_memory_goes_back_to_the_system() -> None:
    code = """
import os, threading
from millstream.core.interpreter import release_freed_memory, share_heaps

def resident():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")

share_heaps()
kept = []
def use():
    used = [bytes(2000) for _ in range(20_000)]
    kept.append(used[-1])
for _ in range(4):
    threads = [threading.Thread(target=use) for _ in range(4)]
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]
before = resident()
release_freed_memory()
print(before - resident() > 20_000_000)
"""
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "True\n"
