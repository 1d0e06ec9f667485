"""A collector of cycles that looks seldom, for as long as it is asked to."""

from __future__ import annotations

import gc

import pytest

from millstream.cli.mill.processes_option import processes_option
from millstream.core.garbage_collection import collecting_seldom
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
