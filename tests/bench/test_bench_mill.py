"""The benchmark of the mill: every contender does all of its work, on sizes that are chosen."""

from __future__ import annotations

from pathlib import Path

import pytest

from millstream.bench import mill
from millstream.core.errors import InputError


def test_every_contender_does_its_work(tmp_path: Path) -> None:
    sizes = {"files": "7", "megabytes": "1", "listed": "2500"}
    found = {c.title: {d.name: d.run() for d in c.contenders} for c in mill.comparisons("quick", tmp_path, **sizes)}
    assert [title.split(" of ")[0].split(" over ")[0] for title in found] == [
        *["First duplication", "Integrity sweep", "A loop without a change"] * 2,
        "A loop without a change",
    ]
    assert all(sample.value > 0 for samples in found.values() for sample in samples.values())
    assert all("millstream" in samples for samples in found.values())
    small = found["First duplication of 7 small files (0 MB)"]
    assert all(sample.figures["CPU µs/file"] > 0 for sample in small.values())
    assert not [path for path in tmp_path.iterdir() if path.name not in ("source", "listed.db")]


@pytest.mark.parametrize("text", ["0", "-1", "many", ""])
def test_a_size_that_is_none_is_refused(tmp_path: Path, text: str) -> None:
    with pytest.raises(InputError, match="--files"):
        next(mill.comparisons("quick", tmp_path, files=text))
