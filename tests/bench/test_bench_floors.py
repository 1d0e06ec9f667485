"""The floors of the benchmarks keep the promises that they are measured with."""

from __future__ import annotations

import asyncio
from pathlib import Path

import msgspec
import pytest

from millstream.core.canonical import canonical_json
from millstream.testing.dids import DidOwner
from millstream_peers.durable_file import DurableFile
from millstream_peers.registry_floor import verify


def test_the_floor_of_a_registry_refuses_what_its_key_did_not_sign() -> None:
    request = msgspec.json.decode(canonical_json(DidOwner("floor").update().request))
    verify(request)
    message, _, signature = request["signedData"].rpartition(".")
    changed = f"{signature[:-6]}{'AAAAAA' if signature[-6:] != 'AAAAAA' else 'BBBBBB'}"
    with pytest.raises(ValueError, match="signature"):
        verify({**request, "signedData": f"{message}.{changed}"})


def test_records_appended_at_once_are_in_the_file_when_their_appends_return(tmp_path: Path) -> None:
    path = tmp_path / "records"

    async def append_all() -> None:
        file = DurableFile(path)
        await asyncio.gather(*(file.append(b"%03d" % number) for number in range(100)))

    asyncio.run(append_all())
    data = path.read_bytes()
    assert [data[start + 4 : start + 7] for start in range(0, 700, 7)] == [b"%03d" % number for number in range(100)]
