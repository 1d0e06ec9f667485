"""The published tiles of the node's ledgers over HTTP, in the format of `tlog-tiles`: static files without access
control."""

from __future__ import annotations

import asyncio
import logging
from typing import cast

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from millstream.anchoring.errors import LedgerUnavailableError
from millstream.anchoring.transparency.tiles import (
    CHECKPOINT,
    CHECKPOINT_MEDIA,
    COSIGNED_CHECKPOINT,
    TILE_MEDIA,
    is_tile_path,
)
from millstream.core.errors import BusyError, MillstreamError, NotFoundError
from millstream.node import Node
from millstream.node.ledgers import LEDGERS, LedgerName
from millstream.rest.bodies import error_response

_log = logging.getLogger(__name__)

_FOR_EVER = "public, max-age=31536000, immutable"
_ALWAYS_ASK = "no-cache"
_MOST_READS = 8
"""Files that are read at the same time: everybody may ask, and the other threads are for users who signed in."""
_CHECKPOINTS = {CHECKPOINT, COSIGNED_CHECKPOINT}


class NotPublishedError(NotFoundError):
    """The file is not published."""


class PublishedFilesUnavailableError(BusyError):
    """The published files cannot be read now; the log of the node says why."""


class LedgerFiles:
    """Answers with the files that *node* publishes; with 404 to everything where it publishes none."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._reads = asyncio.Semaphore(_MOST_READS)

    @property
    def route(self) -> Route:
        """Where the files are: ``/ledger/<ledger>/<path>``."""
        return Route("/ledger/{ledger}/{path:path}", self._answer)

    async def _answer(self, request: Request) -> Response:
        try:
            async with self._reads:
                return await run_in_threadpool(self._file, request.path_params["ledger"], request.path_params["path"])
        except LedgerUnavailableError as error:  # everybody may ask: the path of a folder is not their concern
            _log.warning("cannot read a published file: %s", error)
            return error_response(PublishedFilesUnavailableError())
        except MillstreamError as error:
            return error_response(error)

    def _file(self, ledger: str, path: str) -> Response:
        data = None
        if ledger in LEDGERS and (path in _CHECKPOINTS or is_tile_path(path)):
            files = self._node.ledgers.published(cast(LedgerName, ledger))
            data = files.read(path) if files is not None else None
        if data is None:
            raise NotPublishedError(
                f"there is no file {path[:100]!r} of the ledger {ledger[:40]!r}: the node publishes tiles of "
                f"{', '.join(LEDGERS)} only if anchoring.tiles is set"
            )
        is_checkpoint = path in _CHECKPOINTS
        response = Response(data, headers={"cache-control": _ALWAYS_ASK if is_checkpoint else _FOR_EVER})
        response.headers["content-type"] = CHECKPOINT_MEDIA if is_checkpoint else TILE_MEDIA
        return response
