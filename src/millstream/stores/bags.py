"""Bags (BagIt, RFC 8493): a folder of files with checksums, as archives exchange them. Needs ``millstream[bagit]``.

The package ``bagit`` of the Library of Congress writes and checks the manifests. What a bag has no place for stands in
a tag file of ours: types and properties of items, symbolic links and empty folders.
"""

from __future__ import annotations

import mimetypes
import os
import re
import stat
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from http.client import HTTPException
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

import msgspec

from millstream import __version__
from millstream.core.amounts import counted
from millstream.core.decoding import prepared
from millstream.core.durable import replacing, sync_folder, write_durably
from millstream.core.errors import InputError
from millstream.stores.protocol import DEFAULT_MIMETYPE, StoreError

PAYLOAD = "data"
"""The folder of a bag with the files."""

ITEMS = "millstream-items.jsonl"
"""The tag file of ours: a line (:class:`BagItem`) for each item that is more than its bytes."""

_UNFINISHED = "tagmanifest-unfinished"
"""This file is in a bag until it is finished. ``bagit`` lists no file whose name begins like this in a tag manifest."""

_DECLARATION = b"BagIt-Version: 1.0\nTag-File-Character-Encoding: UTF-8\n"
_CHUNK = 1 << 20
_SECONDS = 60
_UNSAFE = re.compile("[\r\n\0]|%0[AaDd]|^\\s|\\s$")


class BagError(StoreError, InputError):
    """The bag cannot be used as it is."""


class BagExtraMissingError(BagError):
    """Bags need another package: pip install 'millstream[bagit]'"""


class BagItem(msgspec.Struct, frozen=True, omit_defaults=True):
    """Data of an item that a bag cannot store otherwise. ``text`` is the content of an item that is no file (a link's
    target)."""

    content_id: str
    mimetype: str = DEFAULT_MIMETYPE
    properties: dict[str, str] = {}
    text: str | None = None

    @property
    def is_needed(self) -> bool:
        """Whether the file alone does not say all of it."""
        return bool(self.properties) or self.mimetype != guess_type(self.content_id) or self.text is not None


def guess_type(content_id: str) -> str:
    """The mimetype that the name of a file suggests."""
    return mimetypes.guess_type(content_id.rpartition("/")[2])[0] or DEFAULT_MIMETYPE


def check_name(content_id: str) -> str | None:
    """Why the item *content_id* can have no file in a bag; None where it can.

    A manifest is lines of text, in which ``bagit`` reads ``%0A`` as a line break, and strips spaces at the ends.
    """
    names = content_id.split("/")
    if any(name in ("", ".", "..") for name in names):
        return "no file can have this path"
    if any(len(os.fsencode(name)) > 255 for name in names):
        return "a part of the path is longer than 255 bytes"
    return "the manifest of a bag cannot hold this name" if _UNSAFE.search(content_id) else None


def is_bag(folder: Path) -> bool:
    """Whether *folder* is a bag; one that :func:`finish_bag` did not finish, since its process was killed, is none."""
    return (folder / "bagit.txt").exists() and not (folder / _UNFINISHED).exists()


def finish_bag(folder: Path, sums: Mapping[str, str], *, space: str, processes: int = 1) -> None:
    """Make a bag of *folder*, whose payload has been written, and check it; again after it was interrupted.

    *sums* are the expected SHA-256 (hex) by content id; every file is read again. Raises :class:`BagError` where the
    payload is anything else.
    """
    bagit = _library()
    write_durably(folder / _UNFINISHED, b"")
    write_durably(folder / "bagit.txt", _DECLARATION)
    try:
        bag = bagit.Bag(str(folder))
        bag.algorithms = ["sha256"]
        bag.info.update(
            {
                "Bag-Software-Agent": f"millstream {__version__}",
                "Bagging-Date": datetime.now(UTC).strftime("%Y-%m-%d"),
                "External-Identifier": space,
            }
        )
        bag.save(processes=processes, manifests=True)
        written = {name: found["sha256"] for name, found in bagit.Bag(str(folder)).payload_entries().items()}
    except bagit.BagError as error:
        raise BagError(f"cannot finish bag {folder}: {error}; export into another folder") from error
    expected = {f"{PAYLOAD}/{name}": sha256 for name, sha256 in sums.items()}
    if written != expected:
        odd = sorted({*written.items()} ^ {*expected.items()})
        names = sorted({name for name, _ in odd})
        raise BagError(
            f"the payload of bag {folder} differs from the export in {counted(len(names), 'file')}, for example "
            f"{names[0]!r}: export into an empty folder"
        )
    for path in folder.glob("*.txt"):
        with path.open("rb") as file:
            os.fsync(file.fileno())
    (folder / _UNFINISHED).unlink()
    sync_folder(folder)


class OpenBag:
    """The bag in *folder*, checked: payload, tag files, and both kinds of manifests.

    A bag with a ``fetch.txt`` is refused, unless *fetch* says that what it names is to be fetched first, into the bag.
    Raises :class:`BagError` that names what is wrong.
    """

    def __init__(self, folder: Path, *, fetch: bool = False, processes: int = 1) -> None:
        bagit = _library()
        _require_plain(folder)
        try:
            bag = bagit.Bag(str(folder))
            for url, size, name in list(bag.fetch_entries()):
                self._fetch(folder, url, size, name, allowed=fetch)
            bag = bagit.Bag(str(folder))
            bag.validate(processes=processes)
        except OSError as error:
            raise BagError(f"cannot read bag {folder}: {error}") from error
        except (bagit.BagError, UnicodeError) as error:
            raise BagError(f"{folder} is not a valid bag: {error}; name the folder of an intact bag") from error
        self._folder = folder
        self._entries: Mapping[str, Mapping[str, str]] = bag.payload_entries()

    def items(self) -> Mapping[str, BagItem]:
        """The content of our tag file, by content id; empty in a bag of another program."""
        path = self._folder / ITEMS
        lines = path.read_bytes().splitlines() if path.is_file() else ()
        try:
            found = [msgspec.json.decode(line, type=prepared(BagItem)) for line in lines]
        except msgspec.MsgspecError as error:
            raise BagError(f"{path} is not a valid list of items: {error}; ask the sender for a new bag") from error
        return {item.content_id: item for item in found}

    def files(self) -> Iterator[tuple[str, Path, Mapping[str, str]]]:
        """Each file of the payload: its path below it, where it lies, and its checksums by algorithm."""
        for name, sums in sorted(self._entries.items()):
            yield name.removeprefix(f"{PAYLOAD}/"), self._folder / name, sums

    def _fetch(self, folder: Path, url: str, size: str, name: str, *, allowed: bool) -> None:
        path = folder / name
        if not name.startswith(f"{PAYLOAD}/") or ".." in name.split("/"):
            raise BagError(f"{folder}/fetch.txt names {name!r}, which is outside of {PAYLOAD}/: correct fetch.txt")
        if path.exists():
            return
        if not allowed:
            raise BagError(
                f"bag {folder} lists files that must be downloaded, such as {url}: download these files into the bag, "
                "or import the bag with --fetch"
            )
        if not url.startswith(("https://", "http://")) or not size.isdigit():
            raise BagError(
                f"{folder}/fetch.txt: cannot download {url}: only http and https URLs with a stated size are "
                f"supported; download the file yourself, and store it as {path}"
            )
        try:
            self._download(folder, path, url, int(size))
        except (OSError, HTTPException) as error:
            raise BagError(
                f"cannot download {url} to {path}: {error}; try again, or download the file yourself and store it there"
            ) from error

    @staticmethod
    def _download(folder: Path, path: Path, url: str, size: int) -> None:
        left = size
        path.parent.mkdir(parents=True, exist_ok=True)
        with urlopen(Request(url), timeout=_SECONDS) as source, replacing(path) as sink:  # noqa: S310 - checked above
            while chunk := source.read(_CHUNK):
                left -= len(chunk)
                if left < 0:
                    break
                sink.write(chunk)
            if left:
                raise BagError(
                    f"{url} does not have the size that {folder}/fetch.txt states, {size:,} bytes: try again; if "
                    "the error remains, the file at the URL has changed: ask the sender for a new bag"
                )


def _require_plain(folder: Path) -> None:
    """Raise :class:`BagError` where anything in *folder* is neither a file nor a folder: it might lead out of it."""
    if not folder.is_dir():
        raise BagError(f"{folder} is not a folder: name the unpacked folder of a bag")
    for root, folders, files in os.walk(folder):
        for name in (*folders, *files):
            path = Path(root, name)
            mode = path.lstat().st_mode
            if not stat.S_ISREG(mode) and not stat.S_ISDIR(mode):
                raise BagError(
                    f"{path} is a symbolic link or a special file: a bag may contain only regular files and folders: "
                    "replace a link by the file or folder that it links to, and remove special files"
                )


def _library() -> Any:
    try:
        import bagit
    except ImportError as error:
        raise BagExtraMissingError from error
    return bagit
