"""A floor of the benchmarks keeps the promise that it is measured with."""

from __future__ import annotations

import asyncio
from pathlib import Path

from millstream_peers.durable_file import DurableFile


def test_records_appended_at_once_are_in_the_file_when_their_appends_return(tmp_path: Path) -> None:
    path = tmp_path / "records"

    async def append_all() -> None:
        file = DurableFile(path)
        await asyncio.gather(*(file.append(b"%03d" % number) for number in range(100)))

    asyncio.run(append_all())
    data = path.read_bytes()
    assert [data[start + 4 : start + 7] for start in range(0, 700, 7)] == [b"%03d" % number for number in range(100)]
