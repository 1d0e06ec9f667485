"""The routes of the topics of a client."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

from millstream.messaging.client.endpoints import Endpoints
from millstream.messaging.client.errors import ClientError, NotRunningError
from millstream.messaging.client.route import Route

_log = logging.getLogger(__name__)


class RouteTable:
    """Routes by topic. *query* asks a server for one; *prepare* is awaited before a new one is used."""

    def __init__(
        self, query: Callable[[str], Awaitable[Route]], prepare: Callable[[Route], Awaitable[None]], client_id: str
    ) -> None:
        self._query = query
        self._prepare = prepare
        self._client_id = client_id
        self._routes: dict[str, Route] = {}
        self._fetching: dict[str, asyncio.Future[Route]] = {}

    @property
    def endpoints(self) -> set[Endpoints]:
        """The servers that routes name."""
        return {endpoints for route in self._routes.values() for endpoints in route.endpoints}

    @property
    def fetching(self) -> list[asyncio.Future[Route]]:
        """Requests that are under way."""
        return list(self._fetching.values())

    def get(self, topic: str) -> Route | None:
        """The route of *topic*, where it is known."""
        return self._routes.get(topic)

    async def fetch(self, topic: str) -> Route:
        """The route of *topic* from the server, once for all who ask at the same time.

        Raises :class:`NotRunningError` where the client ends meanwhile.
        """
        fetching = self._fetching.get(topic)
        if fetching is None:
            fetching = self._fetching[topic] = asyncio.ensure_future(self._fetch(topic))
            fetching.add_done_callback(lambda _: self._fetching.pop(topic, None))
        try:
            return await asyncio.shield(fetching)
        except asyncio.CancelledError as error:
            if fetching.cancelled():  # by the end of the client
                raise NotRunningError from error
            raise

    async def refresh(self) -> None:
        """Query every route again; an unavailable one keeps its last state."""
        await asyncio.gather(*map(self._refresh, list(self._routes)))

    def clear(self) -> None:
        """Forget all routes."""
        self._routes.clear()

    async def _fetch(self, topic: str) -> Route:
        route = await self._query(topic)
        await self._prepare(route)
        self._routes[topic] = route
        return route

    async def _refresh(self, topic: str) -> None:
        try:
            self._routes[topic] = await self._query(topic)
        except ClientError as error:
            _log.warning("client %s cannot refresh a route, and keeps the old one: %s", self._client_id, error)
