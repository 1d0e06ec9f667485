"""The rot drill, with rclone beside us: what each finds, heals and destroys when copies go bad in every way.

``PYTHONPATH=benchmarks python -m millstream_peers.mill.drill --markdown docs/rot-drill.md`` runs it on local folders
and a real S3 server (OpenStack Swift) and writes the table. Each tool gets spaces of its own, makes its own copies, and
the same damage.
"""

from __future__ import annotations

import argparse
import io
import random
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from millstream.core.durable import write_durably
from millstream.core.errors import NotFoundError
from millstream.stores import LocalStore
from millstream.stores.protocol import Store, StoreError
from millstream.stores.s3 import S3Limits, S3Store, parse_address
from millstream.testing.damage import flip_bit
from millstream.testing.s3 import S3Server
from millstream.testing.services import Server, private
from millstream.testing.swift import data_files
from millstream_peers.mill.drill_tools import SPACE, DrillTool, Millstream, Rclone

MEBIBYTE = 1 << 20
LIMITS = S3Limits(single=5 * MEBIBYTE, part=5 * MEBIBYTE)
SOURCE, FOLDER, BUCKET = "1", "2", "3"
STORES = {SOURCE: "the source, a folder", FOLDER: "a copy in a folder", BUCKET: "a copy in a bucket"}


class DrillFault(msgspec.Struct, frozen=True):
    """One kind of damage to the copy of one item in one store."""

    name: str
    store: str
    text: str

    @property
    def content_id(self) -> str:
        """The item that it is done to."""
        return f"bad/{self.store}-{self.name}"


_KINDS = {
    "flipped": "a bit flipped on the disk",
    "truncated": "cut off on the disk",
    "deleted": "deleted",
    "replaced": "other bytes of the same size written over it",
    "recoated": "a property changed",
    "parts": "a bit flipped in an object of several parts",
}
FAULTS = (
    *(DrillFault(name, FOLDER, text) for name, text in _KINDS.items() if name != "parts"),
    *(DrillFault(name, BUCKET, text) for name, text in _KINDS.items()),
    DrillFault("flipped", SOURCE, _KINDS["flipped"]),
)


class FaultResult(msgspec.Struct, frozen=True):
    """What became of one fault under one tool.

    ``told`` is what the tool said of the item (None: nothing); ``healed`` whether the copy is good afterwards;
    ``spread`` how many good copies of the same item are bad or gone afterwards.
    """

    told: str | None
    healed: bool
    spread: int


class DrillResult(msgspec.Struct, frozen=True):
    """What one tool did: each fault's finding, other good copies it lost, alarms about good items, and the emptying.

    ``drained`` is how many copies were lost once the source was emptied; ``held`` whether the tool said so beforehand.
    """

    tool: str
    findings: Mapping[DrillFault, FaultResult]
    lost: int
    false_alarms: int
    drained: int
    copies: int


def tools(folder: Path, server: Server) -> list[DrillTool]:
    """Everyone who takes part."""
    return [
        Millstream(folder),
        Rclone("rclone check", server.url, ("check",)),
        Rclone("rclone check --download", server.url, ("check", "--download")),
        Rclone("rclone sync", server.url, ("sync",)),
        Rclone("rclone sync --checksum", server.url, ("sync", "--checksum")),
    ]


def run_drill(folder: Path, server: Server, tool: DrillTool, *, items: int) -> DrillResult:
    """Copies of *items* good items and one for each fault, damage, and whatever *tool* does about it."""
    drill = _Drill(folder / tool.name.replace(" ", "-"), server, tool, items)
    drill.fill()
    try:
        for fault in FAULTS:
            drill.damage(fault)
        told = tool.run()
        return drill.outcome(told)
    finally:
        tool.close()


class _Drill:
    def __init__(self, folder: Path, server: Server, tool: DrillTool, items: int) -> None:
        self._server, self._tool, self._s3 = server, tool, S3Server(server.url)
        bucket = self._s3.new_store(limits=LIMITS)
        self._stores: dict[str, Any] = {
            SOURCE: LocalStore(folder / SOURCE),
            FOLDER: LocalStore(folder / FOLDER),
            BUCKET: bucket,
        }
        draw = random.Random(f"{bucket.url} {tool.name}")  # no two have bytes in common: damage would reach both
        self._bodies = {f"items/{number:05}": draw.randbytes(3000) for number in range(items)}
        for number, fault in enumerate(FAULTS):
            size = 6 * MEBIBYTE if fault.name == "parts" else 5000 + number
            self._bodies[fault.content_id] = draw.randbytes(size)

    def fill(self) -> None:
        """Put everything into the source, and let the tool copy it."""
        source: LocalStore = self._stores[SOURCE]
        source.create_space(SPACE)
        for content_id, body in self._bodies.items():
            _put(source, SPACE, content_id, body)
        self._tool.copy(self._stores)
        assert not self._bad(), "the copies were good"

    def damage(self, fault: DrillFault) -> None:
        """Do it, behind everybody's back."""
        if fault.store == BUCKET:
            self._damage_object(fault)
            return
        store, space = self._stores[fault.store], SPACE
        path = store.path_of(space, fault.content_id)
        if fault.name == "truncated":
            path.write_bytes(path.read_bytes()[:100])
        elif fault.name == "deleted":
            path.unlink()
        elif fault.name == "replaced":
            path.write_bytes(b"!" * path.stat().st_size)
        elif fault.name == "recoated":
            store.set_properties(space, fault.content_id, {"creator": "somebody"})
        else:
            flip_bit(path)

    def _damage_object(self, fault: DrillFault) -> None:
        bucket: S3Store = self._stores[BUCKET]
        address, body = parse_address(bucket.url), self._bodies[fault.content_id]
        place: Any = {"Bucket": address.bucket, "Key": f"{address.prefix}{SPACE}/{fault.content_id}"}
        if fault.name == "deleted":
            self._s3.client.delete_object(**place)
        elif fault.name == "replaced":
            self._s3.client.put_object(**place, Body=b"!" * len(body))
        elif fault.name == "recoated":
            bucket.set_properties(SPACE, fault.content_id, {"creator": "somebody"})
        else:
            (path,) = data_files(self._server.folder, body[: LIMITS.part])
            if fault.name == "truncated":
                with path.open("r+b") as file:
                    file.truncate(100)
            else:
                flip_bit(path, seed=3)

    def outcome(self, told: Mapping[tuple[str, str], str]) -> DrillResult:
        """What the tool made of it, and of a source that is empty from one moment to the next."""
        bad, faults = self._bad(), {(fault.store, fault.content_id): fault for fault in FAULTS}
        findings = {
            fault: FaultResult(
                told=_told(told, fault),
                healed=place not in bad and not self._is_recoated(fault),
                spread=sum(item == fault.content_id and store != fault.store for store, item in bad),
            )
            for place, fault in faults.items()
        }
        others = {fault.content_id for fault in FAULTS}
        lost = sum(item not in others for _, item in bad)
        alarms = sum(item not in others for _, item in told)
        good = {(store, item) for store in (FOLDER, BUCKET) for item in self._bodies} - bad
        for content_id in self._bodies:
            self._stores[SOURCE].path_of(SPACE, content_id).unlink()
        self._tool.run()
        return DrillResult(self._tool.name, findings, lost, alarms, len(good & self._bad()), len(good))

    def _bad(self) -> set[tuple[str, str]]:
        """The (store, content id) whose bytes are not what was put into the source."""
        return {
            (name, content_id)
            for name, store in self._stores.items()
            for content_id, body in self._bodies.items()
            if _read(store, SPACE, content_id) != body
        }

    def _is_recoated(self, fault: DrillFault) -> bool:
        if fault.name != "recoated":
            return False
        try:
            properties = self._stores[fault.store].info(SPACE, fault.content_id).properties
        except NotFoundError:
            return True
        return bool(properties.get("creator") == "somebody")


def _told(told: Mapping[tuple[str, str], str], fault: DrillFault) -> str | None:
    """What was said of the damaged copy; of a damaged source, also what was said of its copies."""
    said = told.get((fault.store, fault.content_id))
    if said is None and fault.store == SOURCE:
        said = next((f"{text}, not which side" for (_, item), text in told.items() if item == fault.content_id), None)
    return said


def _put(store: Store, space: str, content_id: str, body: bytes) -> None:
    store.put(space, content_id, io.BytesIO(body), properties={"creator": "mill"})


def _read(store: Store, space: str, content_id: str) -> bytes | None:
    try:
        with store.open(space, content_id) as file:
            return file.read()
    except (NotFoundError, StoreError, OSError):
        return None


def table(outcomes: Sequence[DrillResult]) -> str:
    """What came out, as a table in Markdown: a row a fault, a column a tool."""
    heads = ["what happened", "where", *(outcome.tool for outcome in outcomes)]
    rows = [heads, ["---"] * len(heads)]
    for fault in FAULTS:
        rows.append([fault.text, STORES[fault.store], *(_cell(outcome.findings[fault]) for outcome in outcomes)])
    rows.append(["alarms about good items", "everywhere", *(str(outcome.false_alarms) for outcome in outcomes)])
    rows.append(["other good copies lost", "everywhere", *(str(outcome.lost) for outcome in outcomes)])
    drained = [f"{outcome.drained:,} of {outcome.copies:,} lost" for outcome in outcomes]
    rows.append(["the source emptied", "its copies", *drained])
    return "".join(f"| {' | '.join(row)} |\n" for row in rows)


def _cell(finding: FaultResult) -> str:
    parts = ["missed" if finding.told is None else finding.told]
    parts += ["healed"] if finding.healed else []
    parts += [f"**{finding.spread} good copies destroyed**"] if finding.spread else []
    return ", ".join(parts)


def main() -> None:
    """Run the drill, print the table, and put it into a file where one is named."""
    options = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    options.add_argument("--items", type=int, default=2000, help="good items beside the damaged ones")
    options.add_argument("--markdown", type=Path, help="the document whose table is replaced")
    chosen = options.parse_args()
    with private("swift") as server, tempfile.TemporaryDirectory(prefix="millstream-drill-") as folder:
        root = Path(folder)
        outcomes = [run_drill(root, server, tool, items=chosen.items) for tool in tools(root, server)]
    found = table(outcomes)
    print(found, end="")
    if chosen.markdown is not None:
        before, _, rest = chosen.markdown.read_text("utf-8").partition(BEGIN)
        after = rest.partition(END)[2]
        said = f"Each tool kept copies of {chosen.items:,} good files, and of one a row.\n"
        write_durably(chosen.markdown, f"{before}{BEGIN}\n{said}\n{found}{END}{after}".encode())


BEGIN, END = "<!-- the table -->", "<!-- end of the table -->"

if __name__ == "__main__":
    main()
