"""The child: does what it is asked over its standard input until that ends, and dies with its parent.

``python -m millstream.stores.processes.child PARENT``
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import os
import resource
import signal
import sys
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any, BinaryIO, cast

import msgspec

from millstream.core.decoding import prepared
from millstream.stores.bulk import Bulk, ReadsAtOnce
from millstream.stores.local.bulk import LocalBulk
from millstream.stores.processes.frames import READY, BulkReply, BulkRequest, failure, read_frame, reply, write_frame

_STORES = 64
"""Local stores that stay open."""

_TRACKED = 50_000
"""New objects after which cycles among them are looked for: requests and answers have thousands, and none in cycles."""

_OPEN_FILES = 16_384
"""Files that a child may have open: those of a group that it stores have no names and stay open until they get one."""

_PR_SET_PDEATHSIG = 1

_decoder = msgspec.msgpack.Decoder(prepared(BulkRequest))
_encoder = msgspec.msgpack.Encoder()


def serve(requests: BinaryIO, replies: BinaryIO) -> None:
    """Answer *requests* until there are no more."""
    write_frame(replies, READY)
    while (data := read_frame(requests)) is not None:
        write_frame(replies, _encoder.encode(_answer(data)))


def _answer(data: bytes) -> BulkReply[Any]:
    try:
        request = _decoder.decode(data)
        if request.act == "versions":
            return BulkReply(_hash_versions(request))
        if request.act == "readings":
            at_once = cast("ReadsAtOnce", _bulk(request.root))
            return reply(at_once.readings(request.space, request.ids, request.expected))
        act: Callable[[str, Sequence[Any]], Sequence[Any]] = getattr(_bulk(request.root), request.act)
        return reply(act(request.space, request.items or request.ids))
    except Exception as error:  # whatever it is, it is for the one who asked
        return BulkReply(error=failure(error))


def _hash_versions(request: BulkRequest) -> list[str | None]:
    from millstream.stores.folder.versions import hash_versions  # most children are never asked for it

    return hash_versions(request.root, request.versions)


@lru_cache(_STORES)
def _bulk(root: str) -> Bulk:
    return LocalBulk.of_folder(root)


def main() -> None:
    """Serve the process whose number the command line has."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)  # the parent ends in order, and then closes the pipe
    _die_with(int(sys.argv[1]))
    requests, replies = sys.stdin.buffer, os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # nothing that is printed gets in between the frames
    _allow_open_files()
    gc.freeze()  # what is loaded stays
    gc.set_threshold(_TRACKED)
    with contextlib.suppress(BrokenPipeError):
        serve(requests, replies)


def _allow_open_files() -> None:
    """Have as many files open as a large group of small ones needs, as far as the system allows it."""
    now, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _OPEN_FILES if most == resource.RLIM_INFINITY else min(_OPEN_FILES, most)
    if now != resource.RLIM_INFINITY and now < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, most))


def _die_with(parent: int) -> None:
    """Nothing may be written any more once others can see that the parent is gone: they settle what it has begun."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        sys.exit("the parent process has ended")


if __name__ == "__main__":
    main()
