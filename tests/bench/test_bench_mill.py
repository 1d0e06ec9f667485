"""The benchmark of the mill: every contender does all of its work, on sizes that are chosen."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from millstream.bench import mill
from millstream.bench.mill.fixture import SMALL, fill, small_files
from millstream.core.errors import InputError
from millstream.stores import LocalStore
from millstream.testing.damage import flip_bit
from millstream_peers import small_files_floor


def test_every_contender_does_its_work(tmp_path: Path) -> None:
    sizes = {"files": "200", "megabytes": "1", "listed": "2500"}  # the kernel counts hundredths of a second
    found = {c.title: {d.name: d.run() for d in c.contenders} for c in mill.comparisons("quick", tmp_path, **sizes)}
    assert [title.split(" of ")[0].split(": ")[0] for title in found] == [
        *["First duplication", "Integrity sweep", "A duplication run with nothing to copy"] * 2,
        "Adoption",
        "A duplication run with nothing to copy",
    ]
    assert all(sample.value > 0 for samples in found.values() for sample in samples.values())
    assert all("millstream" in samples for samples in found.values())
    (small,) = (found[title] for title in found if title.startswith("First duplication of 200 small files"))
    assert all(sample.figures["CPU µs/file"] > 0 for sample in small.values())
    left = {"source", "adopted", "listed.db", "first-small"}  # removing many small files slows what is measured next
    assert {path.name for path in tmp_path.iterdir()} <= left


def test_only_the_modes_that_are_wanted_are_run(tmp_path: Path) -> None:
    sizes = {"files": "7", "megabytes": "1"}
    titles = [c.title for c in mill.comparisons("quick", tmp_path, **sizes, modes="copy")]
    assert titles == ["First duplication of 1 large file (1 MB)", "First duplication of 7 small files (0 MB)"]
    with pytest.raises(InputError, match="--modes: unknown mode copies; choose from copy, sweep"):
        next(mill.comparisons("quick", tmp_path, modes="copies,sweep"))


@pytest.mark.parametrize("text", ["0", "-1", "many", ""])
def test_a_size_that_is_none_is_refused(tmp_path: Path, text: str) -> None:
    with pytest.raises(InputError, match="--files"):
        next(mill.comparisons("quick", tmp_path, files=text))


def run_floor(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "millstream_peers.small_files_floor", *arguments]
    folder = Path(small_files_floor.__file__).parents[1]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)


def test_the_floor_makes_copies_that_a_store_opens_and_its_sweep_finds_what_is_wrong(tmp_path: Path) -> None:
    assert len(Path(small_files_floor.__file__).read_text("utf-8").splitlines()) <= 200
    source, copy, folder = (str(tmp_path / name) for name in ("source", "copy", "floor"))
    fill(LocalStore(source), small_files(5))
    assert run_floor("duplicate", source, copy, folder).stdout == "5\n"
    opened = LocalStore(copy)
    names = [entry.content_id for entry in opened.entries(SMALL)]
    assert [opened.info(SMALL, name).checksums for name in names] == [
        LocalStore(source).info(SMALL, name).checksums for name in names
    ]
    assert run_floor("sweep", copy, folder).stdout == "5\n" == run_floor("adopt", source, folder + "2").stdout
    flip_bit(opened.path_of(SMALL, names[2]))
    ended = run_floor("sweep", copy, folder)
    assert ended.returncode and "ValueError: " in ended.stderr and "not as recorded" in ended.stderr
