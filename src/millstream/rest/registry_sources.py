"""The data that other registries need to follow this one: its ledger in pages, and the files of its batches. Nothing is
written.

A node's content-addressed storage has files of event batches too, which are not served here: only what begins as
a batch file of Sidetree (GZIP) is handed out.
"""

from __future__ import annotations

import msgspec
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response

from millstream.anchoring.cas import not_found
from millstream.anchoring.errors import CasTooLargeError
from millstream.anchoring.ledger_source import NODE_LEDGER, LedgerPage
from millstream.anchoring.registry import DidRegistry
from millstream.anchoring.remote_cas import NODE_FILES
from millstream.core.cid import form_of
from millstream.rest.bodies import answer
from millstream.rest.endpoint import EndpointRegistry, PageQuery
from millstream.rest.queries import convert, unique_parameters

_GZIP = b"\x1f\x8b"


endpoints = EndpointRegistry()


class RegistryFileQuery(msgspec.Struct, frozen=True):
    """The CID of a file."""

    cid: str


class RegistrySources:
    """The ledger and the files of *registry*."""

    def __init__(self, registry: DidRegistry) -> None:
        self._registry = registry
        profile = registry.versions.latest.profile
        self._limit = max(
            profile.max_core_index_bytes,
            profile.max_provisional_index_bytes,
            profile.max_proof_bytes,
            profile.max_chunk_bytes,
        )

    @endpoints.declare("GET", NODE_LEDGER, PageQuery, response={"application/json": LedgerPage}, errors=(400, 409, 503))
    async def ledger(self, request: Request) -> Response:
        """List the entries of the ledger after a number, by page."""
        query = convert(unique_parameters(request.query_params.multi_items()), PageQuery)
        return answer(await run_in_threadpool(self._page, query.after, query.limit))

    @endpoints.declare(
        "GET",
        f"{NODE_FILES}/{{cid}}",
        RegistryFileQuery,
        response={"application/octet-stream": bytes},
        errors=(400, 404, 503),
    )
    async def file(self, request: Request) -> Response:
        """Get a file of an anchored batch by its CID, and verify it."""
        cid = request.path_params["cid"]
        form_of(cid)
        data = await run_in_threadpool(self._file, cid)
        cached = {"cache-control": "public, max-age=31536000, immutable", "etag": f'"{cid}"'}
        return Response(data, headers=cached, media_type="application/octet-stream")

    def _page(self, after: int, limit: int) -> LedgerPage:
        self._registry.store.check_writable()  # who follows has no ledger of its own
        ledger = self._registry.ledger
        head = ledger.head()
        total = head.number if head else 0
        items = list(ledger.entries(after + 1, after + limit)) if after < total else []
        more = bool(items) and items[-1].number < total
        return LedgerPage(items, str(items[-1].number) if more else None, total)

    def _file(self, cid: str) -> bytes:
        try:
            data = self._registry.cas.get(cid, self._limit)
        except CasTooLargeError as error:
            raise not_found(cid) from error
        if not data.startswith(_GZIP):
            raise not_found(cid)
        return data
