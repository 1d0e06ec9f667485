"""Content-addressed storage in one local folder: ``<root>/<CID>``."""

from __future__ import annotations

import contextlib
import errno
import itertools
import os
import stat
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import BinaryIO

from millstream.anchoring.cas import damaged, not_found, too_large
from millstream.anchoring.errors import CasDamagedError, CasError, CasUnavailableError
from millstream.core.cid import CidForm, CidHasher, cid_of, form_of, is_cid
from millstream.core.clock import SystemClock
from millstream.core.durable import remove_abandoned_drafts, replacing, sync_folder

_CHUNK = 1 << 20
_OPEN_AT_ONCE = 64
_OPEN_FLAGS = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK  # a link is refused, a pipe does not hang us


class LocalCas:
    """A folder of files named by CID; those of the raw form can be checked by any SHA-256 tool.

    The folder is made at the first write; reading never makes anything. Files are written whole and synced, or not at
    all; names that are no CIDs, links, pipes and folders in it are never read.
    """

    def __init__(self, root: Path | str) -> None:
        self.root = Path(root)

    def put(self, data: bytes, form: CidForm = CidForm.RAW) -> str:
        return self.put_many([data], form)[0]

    def put_many(self, files: Iterable[bytes], form: CidForm = CidForm.RAW) -> Sequence[str]:
        waiting, cids = iter(files), list[str]()
        with _translated(f"cannot write to {self.root}"):
            self._make_root()
            while some := self._put_some(itertools.islice(waiting, _OPEN_AT_ONCE), form):
                cids += some
            sync_folder(self.root)  # one sync of the folder covers all the names given above
        return cids

    def get(self, cid: str, limit: int) -> bytes:
        hasher = CidHasher(form_of(cid))
        with self._open(cid) as file:
            data = file.read(limit + 1)
            hasher.update(data)
            while chunk := file.read(_CHUNK):  # more than the limit: is it damage, or really such a large file?
                hasher.update(chunk)
        if hasher.cid() != cid:
            raise damaged(cid)
        if len(data) > limit:
            raise too_large(cid, limit)
        return data

    def has(self, cid: str) -> bool:
        form_of(cid)
        with _translated(f"cannot read {self.root / cid}"):
            try:
                return stat.S_ISREG((self.root / cid).lstat().st_mode)
            except FileNotFoundError:
                return False

    def cids(self) -> Iterator[str]:
        names = list[str]()
        with (
            _translated(f"cannot list {self.root}"),
            contextlib.suppress(FileNotFoundError),
            os.scandir(self.root) as entries,
        ):
            names = [entry.name for entry in entries if is_cid(entry.name)]
        return iter(sorted(names))

    def clear_drafts(self, stopped: Callable[[], bool] = bool) -> None:
        """Remove files that killed processes were writing, after a day without a write. Reads all names there."""
        remove_abandoned_drafts(self.root, is_cid, SystemClock().now(), stopped=stopped)

    def _make_root(self) -> None:
        if not self.root.is_dir():
            self.root.mkdir(parents=True, exist_ok=True)
            sync_folder(self.root.parent)

    def _put_some(self, files: Iterable[bytes], form: CidForm) -> Sequence[str]:
        with contextlib.ExitStack() as drafts:  # leaving the stack gives every draft its name
            return [self._stage(data, form, drafts) for data in files]

    def _stage(self, data: bytes, form: CidForm, drafts: contextlib.ExitStack) -> str:
        cid = cid_of(data, form)
        if not self._is_whole(cid, len(data)):
            file = drafts.enter_context(replacing(self.root / cid, sync=False))
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        return cid

    def _is_whole(self, cid: str, size: int) -> bool:
        try:
            self.get(cid, size)
        except CasError:
            return False
        return True

    @contextlib.contextmanager
    def _open(self, cid: str) -> Iterator[BinaryIO]:
        with _translated(f"cannot read {self.root / cid}"):
            try:
                handle = os.open(self.root / cid, _OPEN_FLAGS)
            except FileNotFoundError as error:
                raise not_found(cid) from error
            except OSError as error:
                if error.errno == errno.ELOOP:
                    raise CasDamagedError(
                        f"{self.root / cid} is a symbolic link: replace the link with a copy of the file"
                    ) from error
                raise
            with os.fdopen(handle, "rb") as file:
                if not stat.S_ISREG(os.fstat(handle).st_mode):
                    raise CasDamagedError(f"{self.root / cid} is not a regular file: restore the file from a copy")
                yield file


@contextlib.contextmanager
def _translated(what: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise CasUnavailableError(f"{what}: {error.strerror or error}; check the folder and try again") from error
