"""The rot drill, with rclone beside us: what each finds, repairs and destroys when copies go bad in every way.

``PYTHONPATH=benchmarks python -m millstream_peers.mill.drill --markdown docs/rot-drill.md`` runs it on local folders
and a real S3 server (OpenStack Swift) and writes the table. Each tool gets spaces of its own, makes its own copies, and
the same damage.
"""

from __future__ import annotations

import argparse
import itertools
import os
import random
import shutil
import tempfile
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from millstream.core.clock import SystemClock
from millstream.core.durable import write_durably
from millstream.core.errors import NotFoundError
from millstream.stores import LocalStore, hash_stream
from millstream.stores.protocol import StoreError
from millstream.testing.s3 import S3Server
from millstream.testing.services import Server, private
from millstream_peers.mill.drill_faults import (
    BUCKET,
    FAULTS,
    FOLDER,
    PLACES,
    SOURCE,
    SPACE,
    DrillContent,
    DrillDamage,
    DrillFault,
)
from millstream_peers.mill.drill_tools import DrillTool, Millstream, Protect, Rclone, ToolRun

LARGEST = 40_000_000
"""The size of the largest good item, in bytes."""

QUICK = (5000,)
"""The sizes of the items that are damaged in tests."""

FULL = (0, 5000, 6 << 20)
"""Those of a full drill."""


class FaultResult(msgspec.Struct, frozen=True):
    """What came of one fault under one tool.

    ``told`` is what the tool said of the damaged copies (None: nothing of at least one of them), ``repaired`` whether
    they are good afterwards, ``left`` whether the tool still names what is not, and ``spread`` how many good copies of
    the same items are bad or gone afterwards.
    """

    told: str | None
    repaired: bool
    left: bool
    spread: int


class MountResult(msgspec.Struct, frozen=True):
    """What a tool did while the root of a store was an empty folder.

    ``named`` is whether it said that the store is not there, ``well`` whether it said that all is well; ``written`` are
    the files that it wrote below the root, and ``lost`` the good copies elsewhere that are gone afterwards.
    """

    named: bool
    well: bool
    written: int
    lost: int


class DrillResult(msgspec.Struct, frozen=True, kw_only=True):
    """What one tool did: what came of each fault, other good copies it lost, alarms about good items, and the rest.

    ``well`` is whether it said in the end that all is well; ``escapes`` are files outside the stores that it read or
    wrote; ``drained`` is how many of the ``copies`` were lost once the source was emptied.
    """

    tool: str
    results: Mapping[DrillFault, FaultResult]
    lost: int
    false_alarms: int
    well: bool
    escapes: Sequence[str]
    mounts: Mapping[str, MountResult]
    drained: int
    copies: int
    seconds: float = 0.0


def tools(server: Server) -> list[DrillTool]:
    """Everyone who takes part."""
    return [
        Millstream(),
        Protect(),
        Rclone("rclone check", server.url, ("check",)),
        Rclone("rclone check --download", server.url, ("check", "--download")),
        Rclone("rclone sync", server.url, ("sync",)),
        Rclone("rclone sync --checksum", server.url, ("sync", "--checksum")),
    ]


def run_drill(
    folder: Path,
    server: Server,
    tool: DrillTool,
    *,
    items: int,
    largest: int = 3000,
    sizes: tuple[int, ...] = QUICK,
    faults: Sequence[DrillFault] = FAULTS,
) -> DrillResult:
    """Copies of *items* good items and some for each of *faults*, damage, and whatever *tool* does about it.

    Good items have from 0 to *largest* bytes; each fault is done to an item of each of *sizes*.
    """
    clock = SystemClock()
    began = clock.monotonic()
    chosen = [fault for fault in faults if tool.applies(fault)]
    drill = _Drill(folder / tool.name.replace(" ", "-"), server, tool, _item_sizes(items, largest), (chosen, sizes))
    drill.fill()
    drill.damage()
    result = drill.result(tool.run())
    return msgspec.structs.replace(result, seconds=clock.monotonic() - began)


def _item_sizes(items: int, largest: int) -> dict[str, int]:
    """From empty to *largest*, most of them small: seven in ten have less than a hundred bytes."""
    steps = [number / max(items - 1, 1) for number in range(items)]
    random.Random(items).shuffle(steps)
    return {f"items/{number:05}": round((largest + 1) ** (step**4)) - 1 for number, step in enumerate(steps)}


class _Drill:
    def __init__(
        self,
        folder: Path,
        server: Server,
        tool: DrillTool,
        items: Mapping[str, int],
        damaged: tuple[Sequence[DrillFault], tuple[int, ...]],
    ) -> None:
        self._tool, (self._faults, self._sizes) = tool, damaged
        bucket = S3Server(server.url).new_store()
        self._stores: dict[str, Any] = {
            SOURCE: LocalStore(folder / SOURCE),
            FOLDER: LocalStore(folder / FOLDER),
            BUCKET: bucket,
        }
        self._roots = {name: folder / name for name in (SOURCE, FOLDER)}
        sizes = dict(items)
        for fault in self._faults:
            sizes |= fault.content_ids(self._sizes)
        self._content = DrillContent(f"{bucket.url} {tool.name}", sizes)
        self._damage = DrillDamage(self._stores, server, self._content, folder / "outside")
        self._damaged = {name for fault in self._faults for name in fault.content_ids(self._sizes)}
        tool.start(folder, self._stores)

    def fill(self) -> None:
        """Put everything into the source, old versions first, and let the tool copy it."""
        body, old = self._content.body, [fault for fault in self._faults if fault.name == "outdated"]
        names = [name for fault in old for name in fault.content_ids(self._sizes)]
        self._tool.put((name, body(name, "old") if name in names else body(name)) for name in self._content.sizes)
        self._tool.copy()
        for fault in old:
            self._damage.keep_versions(fault, self._sizes)
        self._tool.put((name, body(name)) for name in names)
        self._tool.copy()
        assert not self._incomplete(self._stores), "the copies have the sizes of the items"

    def damage(self) -> None:
        """Do all of it, behind everybody's back."""
        for fault in self._faults:
            self._damage.do(fault, self._sizes, self._tool.delete_rows)
        self._damage.seal()

    def result(self, run: ToolRun) -> DrillResult:
        """What the tool made of it, and of stores that are empty from one moment to the next."""
        escapes = self._damage.escapes()
        bad = self._bad()
        results = {fault: self._fault_result(fault, run, bad) for fault in self._faults}
        lost = sum(name not in self._damaged for _, name in bad)
        alarms = sum(name in self._content.sums and name not in self._damaged for _, name in run.told)
        good = set(itertools.product((FOLDER, BUCKET), self._content.sums)) - bad
        mounts = {name: self._unmounted(name, good) for name in (FOLDER, SOURCE)}
        good -= self._incomplete(self._copies)
        for name in self._content.sums:
            self._remove_original(name)
        self._tool.run_daily(FOLDER)
        return DrillResult(
            tool=self._tool.name, results=results, lost=lost, false_alarms=alarms, well=run.well, escapes=escapes,
            mounts=mounts, drained=len(good & self._incomplete(self._copies)), copies=len(good),
        )  # fmt: skip

    @property
    def _copies(self) -> dict[str, Any]:
        return {name: self._stores[name] for name in (FOLDER, BUCKET)}

    def _fault_result(self, fault: DrillFault, run: ToolRun, bad: set[tuple[str, str]]) -> FaultResult:
        places = list(itertools.product(fault.stores, fault.content_ids(self._sizes)))
        still = [place for place in places if place in bad or self._is_recoated(fault, *place)]
        names = {name for _, name in places}
        return FaultResult(
            told=_words(_said(run.told, place) for place in places),
            repaired=not still,
            left=all(_said(run.left, place) is not None for place in still),
            spread=sum(name in names and store not in fault.stores for store, name in bad),
        )

    def _unmounted(self, name: str, good: Iterable[tuple[str, str]]) -> MountResult:
        """Let the tool run while a store's root is an empty folder, as where its disk is not mounted."""
        root, aside = self._roots[name], self._roots[name].with_name(f"{name}-aside")
        root.rename(aside)
        root.mkdir()
        run = self._tool.run_daily(name)
        written = sum(path.is_file() for path in root.rglob("*"))
        shutil.rmtree(root)
        aside.rename(root)
        lost = set(good) & self._incomplete(self._copies)
        return MountResult(run.names_missing_mount, run.well, written, len(lost))

    def _remove_original(self, name: str) -> None:
        try:
            self._stores[SOURCE].path_of(SPACE, name).unlink()
        except NotFoundError:
            return

    def _bad(self) -> set[tuple[str, str]]:
        """The (store, content id) whose bytes are not what was put into the source last."""
        return {
            (name, content_id)
            for name, store in self._stores.items()
            for content_id, wanted in self._content.sums.items()
            if _sha256(store, content_id) != wanted
        }

    def _incomplete(self, stores: Mapping[str, Any]) -> set[tuple[str, str]]:
        """The (store, content id) that are not listed with their size."""
        return {
            (name, content_id)
            for name, store in stores.items()
            for content_id, size in self._content.sizes.items() - _listed(store).items()
        }

    def _is_recoated(self, fault: DrillFault, store: str, content_id: str) -> bool:
        if fault.name != "recoated":
            return False
        try:
            properties = self._stores[store].info(SPACE, content_id).properties
        except (NotFoundError, StoreError):
            return True
        return bool(properties.get("creator") == "somebody")


def _said(told: Mapping[tuple[str, str], str], place: tuple[str, str]) -> str | None:
    """What was said of a damaged copy; of a damaged source, also what was said of its copies."""
    said, (store, content_id) = told.get(place), place
    if said is None and store == SOURCE:
        said = next((f"{text}, side unknown" for (_, item), text in told.items() if item == content_id), None)
    return said


def _words(said: Iterable[str | None]) -> str | None:
    """All different things that were said; None where nothing was said of one of the places."""
    found = list(dict.fromkeys(said))
    return None if None in found else "; ".join(one for one in found if one is not None)


def _listed(store: Any) -> dict[str, int]:
    """The sizes of all items that a store lists."""
    found: dict[str, int] = {}
    while page := store.entries(SPACE, after=max(found, default="", key=str.encode)):
        found |= {entry.content_id: entry.size for entry in page}
    return found


def _sha256(store: Any, content_id: str) -> str | None:
    """The checksum of an item's bytes; None where it cannot be used."""
    try:
        store.info(SPACE, content_id)  # whose record is damaged is no good copy either
        with store.open(SPACE, content_id) as file:
            return hash_stream(file).sha256
    except (NotFoundError, StoreError, OSError):
        return None


def table(outcomes: Sequence[DrillResult]) -> str:
    """What came out, as a table in Markdown: a row a fault, a column a tool."""
    heads = ["fault", "damaged place", *(outcome.tool for outcome in outcomes)]
    rows = [heads, ["---"] * len(heads)]
    for fault in FAULTS:
        cells = (_cell(outcome.results.get(fault)) for outcome in outcomes)
        rows.append([fault.text, PLACES[fault.place], *cells])
    for store in (FOLDER, SOURCE):
        mounts = (_mount_cell(outcome.mounts[store], outcome.copies) for outcome in outcomes)
        rows.append(["root replaced by an empty folder", PLACES[store], *mounts])
    drained = (f"{outcome.drained:,} of {outcome.copies:,} lost" for outcome in outcomes)
    rows.append(["every file of the source deleted", "its copies", *drained])
    rows.append(["false alarms", "everywhere", *(str(outcome.false_alarms) for outcome in outcomes)])
    rows.append(["other good copies lost", "everywhere", *(str(outcome.lost) for outcome in outcomes)])
    rows.append(["files read or written", "outside the stores", *(str(len(outcome.escapes)) for outcome in outcomes)])
    return "".join(f"| {' | '.join(row)} |\n" for row in rows)


def _cell(found: FaultResult | None) -> str:
    if found is None:
        return "–"
    parts = ["missed" if found.told is None else found.told]
    if found.repaired:
        parts.append("repaired")
    elif found.told is not None and not found.left:
        parts.append("not reported again")
    if found.spread:
        parts.append(f"**{found.spread} good copies destroyed**")
    return ", ".join(parts)


def _mount_cell(found: MountResult, copies: int) -> str:
    parts = ["reported" if found.named else "reported as good" if found.well else "treated as empty"]
    parts += [f"**{found.written:,} files written there**"] if found.written else []
    parts += [f"**{found.lost:,} of {copies:,} copies lost**"] if found.lost else []
    return ", ".join(parts)


def main() -> None:
    """Run the drill, print the table, and put it into a file where one is named."""
    options = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    options.add_argument("--items", type=int, default=1000, help="good items beside the damaged ones")
    options.add_argument("--largest", type=int, default=LARGEST, help="the size of the largest of them, in bytes")
    options.add_argument("--tool", action="append", help="only this tool; may be given again")
    options.add_argument("--markdown", type=Path, help="the document whose table is replaced")
    chosen = options.parse_args()
    outcomes: list[DrillResult] = []
    with private("swift") as server, tempfile.TemporaryDirectory(prefix="millstream-drill-") as folder:
        for tool in tools(server):
            if chosen.tool is None or tool.name in chosen.tool:
                outcome = run_drill(Path(folder), server, tool, items=chosen.items, largest=chosen.largest, sizes=FULL)
                print(f"{tool.name}: {outcome.seconds:,.0f} s, load {os.getloadavg()[0]:.1f}", flush=True)
                shutil.rmtree(Path(folder, tool.name.replace(" ", "-")))
                outcomes.append(outcome)
                if chosen.markdown is not None:
                    _write(chosen.markdown, outcomes, _item_sizes(chosen.items, chosen.largest).values())
    print(table(outcomes), end="")


def _write(path: Path, outcomes: Sequence[DrillResult], sizes: Collection[int]) -> None:
    """Put the table into the document at *path*."""
    said = (
        f"Each tool copied {len(sizes):,} files that were not damaged, of 0 to {max(sizes):,} bytes ({sum(sizes):,} "
        "bytes in all). For each row, it also copied a file of each of the sizes "
        f"{', '.join(f'{size:,}' for size in FULL)} bytes that can have this fault.\n"
    )
    before, _, rest = path.read_text("utf-8").partition(BEGIN)
    after = rest.partition(END)[2]
    write_durably(path, f"{before}{BEGIN}\n{said}\n{table(outcomes)}{END}{after}".encode())


BEGIN, END = "<!-- the table -->", "<!-- end of the table -->"

if __name__ == "__main__":
    main()
