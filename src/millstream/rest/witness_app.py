"""A witness over HTTP: ``POST /add-checkpoint`` (c2sp.org/tlog-witness)."""

from __future__ import annotations

import math
from collections import OrderedDict

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from millstream.anchoring.witness.requests import MAX_REQUEST_BYTES
from millstream.anchoring.witness.witness import Witness
from millstream.core.address import client_network
from millstream.core.clock import Clock
from millstream.core.errors import InputError, MillstreamError
from millstream.core.token_bucket import TokenBucket
from millstream.rest.bodies import error_response, read_body

_MOST_ADDRESSES = 10_000


def witness_app(witness: Witness, clock: Clock, *, rate: float, burst: int) -> Starlette:
    """The application of *witness*: each client address may send *rate* requests a second, *burst* of them at once.

    ``GET /`` answers with the verifier key.
    """
    return Starlette(routes=_WitnessHandlers(witness, RateLimit(rate, burst, clock)).routes)


class _WitnessHandlers:
    def __init__(self, witness: Witness, limit: RateLimit) -> None:
        self._witness = witness
        self._limit = limit
        self.routes = [
            Route("/add-checkpoint", self._add_checkpoint, methods=["POST"]),
            Route("/", self._key, methods=["GET"]),
        ]

    async def _add_checkpoint(self, request: Request) -> Response:
        wait = self._limit.seconds_to_wait(request.client.host if request.client else "")
        if wait > 0:
            headers = {"Retry-After": str(math.ceil(wait))}
            return PlainTextResponse("too many requests from this address: try again later\n", 429, headers)
        try:
            body = await read_body(request, MAX_REQUEST_BYTES, ())
        except InputError as error:
            return PlainTextResponse(f"{error}\n", error_response(error).status_code)
        try:
            answer = await run_in_threadpool(self._witness.add_checkpoint, body)
        except MillstreamError as error:
            text = f"the witness cannot use its state now: {type(error).__name__}\n"
            return PlainTextResponse(text, 503, {"Retry-After": "1"})
        return Response(answer.body, answer.status, media_type=answer.media)

    async def _key(self, _: Request) -> Response:
        return PlainTextResponse(f"{self._witness.verifier_key}\n")


class RateLimit:
    """*rate* requests a second from each address (IPv6: each network), and up to *burst* at once; not thread-safe."""

    def __init__(self, rate: float, burst: int, clock: Clock) -> None:
        self._rate = rate
        self._burst = burst
        self._clock = clock
        self._buckets: OrderedDict[str, TokenBucket] = OrderedDict()
        """By address; the one that was silent longest comes first."""

    def seconds_to_wait(self, address: str) -> float:
        """Count a request of *address*: 0 if it is allowed, otherwise the seconds after which the next one is."""
        address = client_network(address)
        bucket = self._buckets.pop(address, None) or TokenBucket(self._rate, self._clock, burst=self._burst)
        self._buckets[address] = bucket
        if len(self._buckets) > _MOST_ADDRESSES:
            self._buckets.popitem(last=False)
        return bucket.try_take()
