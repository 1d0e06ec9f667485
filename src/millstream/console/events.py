"""Changes, sent to open pages as server-sent events."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping

import msgspec
import sqlalchemy as sa
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from millstream.console.page_renderer import PageRenderer
from millstream.core.errors import MillstreamError
from millstream.rest.access_control import Session
from millstream.rest.api import error_answer
from millstream.rest.app_context import AppContext
from millstream.rest.authentication import find_session, require_role
from millstream.rest.principal import Principal
from millstream.settings.console import Role
from millstream.status.models import Sample
from millstream.status.poller import SAMPLE_SECONDS

MOST_STREAMS = 200
_RETRY_MILLISECONDS = 2_000


class Events:
    """The streams that are open; :meth:`close` ends them, so that a server can end."""

    def __init__(self, app: AppContext, pages: PageRenderer) -> None:
        self._app, self._pages = app, pages
        self._ended = asyncio.Event()
        self._open = 0

    def close(self) -> None:
        """End every stream. To be called in the event loop."""
        self._ended.set()

    async def serve(self, request: Request) -> Response:
        """A stream of samples, of the steps where the page asks for them, and of the news that something changed."""
        try:
            principal = await run_in_threadpool(require_role, request, self._app.access, Role.VIEWER)
        except MillstreamError as error:
            return error_answer(error)
        if self._open >= MOST_STREAMS or self._ended.is_set():
            return Response("too many open pages\n", 503, {"retry-after": "10"})
        fragments = None
        if request.query_params.get("steps"):
            fragments = self._fragments(await find_session(request, self._app.access), principal)
        return StreamingResponse(
            self._stream(request, fragments), media_type="text/event-stream", headers={"x-accel-buffering": "no"}
        )

    async def _is_allowed(self, request: Request) -> bool:
        """Whether who opened the stream may still look: a sign-out, or the end of the session, ends it too."""
        try:
            await run_in_threadpool(require_role, request, self._app.access, Role.VIEWER)
        except (MillstreamError, sa.exc.SQLAlchemyError):
            return False
        return True

    async def _stream(
        self, request: Request, fragments: Callable[[], Mapping[str, str]] | None
    ) -> AsyncIterator[bytes]:
        self._open += 1
        told: Sample | None = None
        shown_at = float("-inf")
        try:
            yield b"retry: %d\n\n" % _RETRY_MILLISECONDS
            while not self._ended.is_set() and await self._is_allowed(request):
                latest = self._app.poller.latest
                if latest is not None and (told is None or latest.at > told.at):
                    yield event("sample", msgspec.json.encode(latest).decode())
                    if told is None or _counts(latest) != _counts(told):
                        yield event("changed", "")
                    told = latest
                now = self._app.clock.monotonic()
                if fragments is not None and now - shown_at >= SAMPLE_SECONDS:  # also where no sample can be taken
                    shown_at = now
                    for name, html in (await self._rendered(fragments)).items():
                        yield event(name, html)
                try:
                    async with asyncio.timeout(SAMPLE_SECONDS / 2):
                        await self._ended.wait()
                except TimeoutError:
                    continue
        finally:
            self._open -= 1

    async def _rendered(self, fragments: Callable[[], Mapping[str, str]]) -> Mapping[str, str]:
        """The *fragments*; none where a part of the node cannot be read, so that the stream goes on.

        The page then keeps what it shows, with its time.
        """
        try:
            return await run_in_threadpool(fragments)
        except (MillstreamError, sa.exc.SQLAlchemyError):  # the poller logs why
            return {}

    def _fragments(self, session: Session | None, principal: Principal) -> Callable[[], Mapping[str, str]]:
        """Renders the parts of the overview that change, for *principal* in *session*."""
        token = self._app.access.form_token(session) if session is not None else ""

        def render() -> Mapping[str, str]:
            overview = self._app.poller.overview()
            is_operator = bool(token) and principal.role.covers(Role.OPERATOR)
            return {
                "verdict": self._pages.fragment("verdict.html", o=overview, token=token, is_operator=is_operator),
                "steps": self._pages.fragment("steps.html", o=overview),
            }

        return render


def event(name: str, data: str) -> bytes:
    """One event; its data may have several lines."""
    lines = "".join(f"data: {line}\n" for line in data.split("\n"))
    return f"event: {name}\n{lines}\n".encode()


def _counts(sample: Sample) -> tuple[int, ...]:
    return (sample.messages, sample.batches, sample.anchors, sample.open_tasks, sample.dead_tasks)
