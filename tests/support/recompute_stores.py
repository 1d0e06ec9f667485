"""Spaces of items on three stores, made from a seed, with every kind of difference between bytes and records.

The files and their sidecars are written as docs/formats/local-store.md has them. What the manifest records is returned,
for the tests to record.
"""

from __future__ import annotations

import hashlib
import json
import os
import random
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

STORES = ("primary", "second", "third")
SPACES = ("photos", "Süd 1", "empty")
DAY = 86_400
DAMAGED = "damaged-record"


@dataclass(frozen=True, kw_only=True)
class Copy:
    """One item of one store, as it is there and as it is recorded."""

    store: str
    space: str
    content_id: str
    content: bytes | None = None
    """The bytes of the file; None: there is none."""
    provider: str | None = None
    """The SHA-256 of the sidecar; None: there is no sidecar; :data:`DAMAGED`: it cannot be used."""
    manifest: str | None = None
    """The SHA-256 of the manifest; None: there is no row, or with :attr:`deleted` a tombstone."""
    deleted: bool = False
    size: int = 0
    """The size that the manifest records."""
    fresh: bool = False
    """Whether the file changed less than a day ago."""
    properties: tuple[tuple[str, str], ...] = ()


def digest(content: bytes) -> str:
    """SHA-256 in hex."""
    return hashlib.sha256(content).hexdigest()


def _good(copy: Copy, content: bytes) -> Copy:
    return replace(copy, content=content, provider=digest(content), manifest=digest(content), size=len(content))


def _flipped(content: bytes) -> bytes:
    return content[:-1] + bytes([content[-1] ^ 1])


Change = Callable[[Copy, bytes], Copy]

DAMAGES: dict[str, Change] = {
    "rotten": lambda copy, content: replace(_good(copy, content), content=_flipped(content)),
    "missing": lambda copy, content: replace(_good(copy, content), content=None, provider=None),
    "unrecorded": lambda copy, content: replace(_good(copy, content), manifest=None),
    "unrecorded and fresh": lambda copy, content: replace(_good(copy, content), manifest=None, fresh=True),
    "other bytes": lambda copy, content: replace(_good(copy, content + b"!"), manifest=digest(content)),
    "other bytes of this size": lambda copy, content: replace(_good(copy, _flipped(content)), manifest=digest(content)),
    "other bytes and fresh": lambda copy, content: replace(
        _good(copy, content + b"!"), manifest=digest(content), fresh=True
    ),
    "three ways": lambda copy, content: replace(_good(copy, content), content=content + b"!", provider=digest(b"?")),
    "provider wrong": lambda copy, content: replace(_good(copy, content), provider=digest(b"?")),
    "no checksum": lambda copy, content: replace(_good(copy, content), provider=None),
    "no checksum and rotten": lambda copy, content: replace(
        _good(copy, content), provider=None, content=_flipped(content)
    ),
    "nothing recorded": lambda copy, content: replace(copy, content=content),
    "nothing recorded and fresh": lambda copy, content: replace(copy, content=content, fresh=True),
    "unrecorded and rotten": lambda copy, content: replace(
        _good(copy, content), manifest=None, content=_flipped(content)
    ),
    "unrecorded, rotten and fresh": lambda copy, content: replace(
        _good(copy, content), manifest=None, content=_flipped(content), fresh=True
    ),
    "deleted": lambda copy, _: replace(copy, deleted=True),
    "undeleted": lambda copy, content: replace(_good(copy, content), manifest=None, deleted=True),
    "damaged record": lambda copy, content: replace(_good(copy, content), provider=DAMAGED),
    "damaged record and rotten": lambda copy, content: replace(
        _good(copy, content), provider=DAMAGED, content=_flipped(content)
    ),
}
"""What may be wrong with one copy while all others are good."""

Story = Callable[[dict[str, Copy], bytes], dict[str, Copy]]


def _all_good(copies: dict[str, Copy], content: bytes) -> dict[str, Copy]:
    return {store: _good(copy, content) for store, copy in copies.items()}


STORIES: dict[str, Story] = {
    "new": lambda copies, content: {**copies, "primary": _good(copies["primary"], content)},
    "new and unrecorded": lambda copies, content: {
        **copies,
        "primary": DAMAGES["unrecorded"](copies["primary"], content),
    },
    "stray": lambda copies, content: {**copies, "second": _good(copies["second"], content)},
    "stray and unrecorded": lambda copies, content: {
        **copies,
        "third": DAMAGES["unrecorded"](copies["third"], content),
    },
    "changed": lambda copies, content: {
        **_all_good(copies, content),
        "primary": _good(copies["primary"], content + b" changed"),
    },
    "changed, of this size": lambda copies, content: {
        **_all_good(copies, content),
        "primary": _good(copies["primary"], _flipped(content)),
    },
    "deleted at the source": lambda copies, content: {
        **_all_good(copies, content),
        "primary": replace(copies["primary"], deleted=True),
    },
    "vanished at the source": lambda copies, content: {
        **_all_good(copies, content),
        "primary": DAMAGES["missing"](copies["primary"], content),
    },
    "other properties": lambda copies, content: {
        store: replace(_good(copy, content), properties=(("of", store),)) for store, copy in copies.items()
    },
}
"""What may be different between the copies of one item."""

NAMES = [
    "{0}.jpg",
    "2013/{0}.jpg",
    "a b/größe %{0}",
    ".hidden/{0}",
    "\U0001f600/{0}\n",
    "a//{0}",
    "{0}/",
    "x" * 300 + "{0}",
]


def made_copies(folder: Path, draw: random.Random, count: int, now: int) -> list[Copy]:
    """Make *count* items on three stores below *folder*; nine tenths of them are in one space.

    Returns all copies, those that are neither in their store nor recorded left out.
    """
    made: list[Copy] = []
    kinds = [*DAMAGES, *STORIES]
    for number in range(count):
        space = SPACES[0] if draw.random() < 0.9 else SPACES[1]
        name = draw.choice(NAMES[:2] if draw.random() < 0.7 else NAMES).format(number)
        content = f"{number} {draw.random()}".encode() * draw.randrange(1, 20)
        copies = {store: Copy(store=store, space=space, content_id=name) for store in STORES}
        kind = kinds[number % 100] if number % 100 < len(kinds) else "good"
        if kind in STORIES:
            copies = STORIES[kind](copies, content)
        else:
            copies = _all_good(copies, content)
            if kind in DAMAGES:
                store = draw.choice(STORES)
                copies[store] = DAMAGES[kind](Copy(store=store, space=space, content_id=name), content)
        made += copies.values()
    made = [copy for copy in made if copy.content is not None or copy.manifest is not None or copy.deleted]
    write_copies(folder, made, now)
    return made


def write_copies(folder: Path, copies: Iterable[Copy], now: int) -> None:
    """Write the files of *copies* into the stores below *folder*, and remove those of copies without content."""
    writer = StoreWriter(folder, now)
    for copy in copies:
        if copy.content is None:
            writer.path(copy).unlink(missing_ok=True)
        else:
            writer.write(copy, copy.content)


def changed_copies(draw: random.Random, copies: Sequence[Copy]) -> list[Copy]:
    """*copies* as other programs left them: some are gone, some are new, some are longer, some were only touched."""
    changed = []
    for copy in copies:
        chance = draw.random()
        if copy.content is None or chance < 0.8:
            changed.append(copy)
        elif chance < 0.85:
            changed.append(replace(copy, content=None))
        elif chance < 0.9:
            changed.append(replace(copy, content=copy.content + b" and more"))
        elif chance < 0.95:
            changed.append(replace(copy, fresh=not copy.fresh))
        else:
            changed += [copy, replace(copy, content_id=f"new/{copy.content_id}x")]
    return changed


class StoreWriter:
    """Writes items into local stores whose spaces exist; what is fresh changed at *now* (nanoseconds), all else three
    days before."""

    def __init__(self, folder: Path, now: int) -> None:
        self.folder, self.now = folder, now
        self.made: set[Path] = set()

    def path(self, copy: Copy) -> Path:
        """Where the bytes of *copy* are."""
        return self.folder / copy.store / spelled(copy.space) / spelled(copy.content_id)

    def write(self, copy: Copy, content: bytes) -> None:
        path = self.path(copy)
        self._folder(path.parent)
        path.write_bytes(content)
        mtime = self.now - (0 if copy.fresh else 3 * DAY * 1_000_000_000)
        os.utime(path, ns=(mtime, mtime))
        if copy.provider is None:
            return
        described: dict[str, object] = {
            "inode": path.stat().st_ino, "mtime_ns": mtime, "mimetype": "text/plain", "size": len(content),
            "sha256": copy.provider,
        }  # fmt: skip
        described |= {"properties": dict(copy.properties)} if copy.properties else {}
        line = json.dumps({"content_id": copy.content_id, "files": [described]}, separators=(",", ":")).encode()
        seal = "0" * 64 if copy.provider == DAMAGED else digest(line)
        name = digest(copy.content_id.encode())
        sidecar = self.folder / copy.store / ".millstream" / "sidecars" / spelled(copy.space) / name[0] / f"{name}.json"
        self._folder(sidecar.parent)
        sidecar.write_bytes(line + b"\n" + seal.encode() + b"\n")

    def _folder(self, folder: Path) -> None:
        if folder not in self.made:
            folder.mkdir(parents=True, exist_ok=True)
            self.made.add(folder)


def spelled(content_id: str) -> str:
    """The path of an item in its space."""
    segments = content_id.split("/")
    if not all(segments):
        return "%2F/" + _cut(_escaped(content_id).replace("/", "%2F"))
    return "/".join(_cut(_escaped(segment)) for segment in segments)


def _escaped(segment: str) -> str:
    text = "".join(f"%{ord(sign):02X}" if sign == "%" or sign < " " or sign == "\x7f" else sign for sign in segment)
    return "%2E" + text[1:] if text.startswith(".") else text


def _cut(segment: str) -> str:
    data = segment.encode()
    if len(data) <= 255:
        return segment
    assert segment.isascii()  # so no piece ends within a character; and none of ours ends within an escape
    return segment[:254] + "%/" + _cut(segment[254:])
