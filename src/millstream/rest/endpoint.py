"""Endpoints declared once: routes, the checks of what is asked, the description and tables of text follow from that."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, Generic, TypeVar, get_type_hints

import msgspec

from millstream.rest.principal import Principal
from millstream.settings.console import Role

Item = TypeVar("Item")
QueryT = TypeVar("QueryT")
BodyT = TypeVar("BodyT")

PREFIX = "/api/v1"
"""The prefix of every path of the node's interface."""

Name = Annotated[str, msgspec.Meta(min_length=1, max_length=1024)]
Number = Annotated[int, msgspec.Meta(ge=0, le=2**53 - 1)]
"""An integer that a program in JavaScript reads exactly as well."""
Limit = Annotated[int, msgspec.Meta(ge=1, le=1000)]


class PageQuery(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Up to ``limit`` rows after the cursor ``after`` (``next`` of the previous page)."""

    after: Annotated[Number, msgspec.Meta(description="`next` of the previous page")] = 0
    limit: Limit = 100


class NoQuery(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """No parameters."""


class NoBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Nothing to be sent."""


@dataclasses.dataclass(frozen=True)
class ApiRequest(Generic[QueryT, BodyT]):
    """One call: what stands in path and query, what was sent, by whom, and over which version (``If-Match``)."""

    query: QueryT
    body: BodyT
    principal: Principal
    if_match: str | None = None


class Listing(msgspec.Struct, Generic[Item], frozen=True):
    """Rows of a table. ``next`` is the value of ``after`` for the next rows (None at the end); ``total`` is the number
    of all rows, if known; ``as_of`` is the time of that count (microseconds; None: now).
    """

    items: Sequence[Item]
    next: str | None = None
    total: int | None = None
    as_of: int | None = None


class PartialListing(Listing[Item], Generic[Item], frozen=True):
    """A listing from several parts of the node. ``unreadable`` names the parts that cannot be read, with the reasons:
    their rows are missing, and ``total`` is None.
    """

    unreadable: Mapping[str, str] = {}


def partial_listing(
    rows: Sequence[Item], unreadable: Mapping[str, str], as_of: int | None = None
) -> PartialListing[Item]:
    """All *rows* of the parts that can be read."""
    return PartialListing(rows, total=None if unreadable else len(rows), as_of=as_of, unreadable=unreadable)


class FileDownload(msgspec.Struct, frozen=True):
    """Bytes to be saved under ``name``."""

    name: str
    data: bytes
    media: str = "application/octet-stream"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Endpoint:
    """One operation of an interface: the only source of its route and of its description.

    ``path`` has the fields of ``query`` that stand in braces in it, ``role`` is None where an interface has no users.
    ``request`` and ``response`` are the types by media type of a body and of an answer, where they are not JSON of
    ``body`` and ``answer``, and the texts say what they are; ``headers`` are those of the answer that matter.
    ``errors`` are the statuses of its errors where they are not the usual ones.
    """

    method: str
    path: str
    query: type[Any]
    handler: Callable[..., Any]
    body: type[Any] = NoBody
    role: Role | None = None
    answer: Any = None
    conditional: bool = False
    operation_id: str = ""
    request: Mapping[str, Any] | None = None
    request_text: str = ""
    response: Mapping[str, Any] | None = None
    response_text: str = ""
    headers: Mapping[str, str] = dataclasses.field(default_factory=dict)
    errors: Sequence[int] | None = None

    @property
    def name(self) -> str:
        """Its id in the description."""
        return self.operation_id or self.handler.__name__

    @property
    def request_types(self) -> Mapping[str, Any]:
        """The types of its body, by media type; empty if it has no body."""
        if self.request is not None:
            return self.request
        return {} if self.body is NoBody else {"application/json": self.body}

    @property
    def response_types(self) -> Mapping[str, Any]:
        """The types of its answer, by media type."""
        if self.response is not None:
            return self.response
        if self.answer is FileDownload:
            return {"application/octet-stream": bytes, "text/plain": str, "application/json": Any}
        return {"application/json": self.answer} | ({"text/csv": str} if self.is_table else {})

    @property
    def error_statuses(self) -> Sequence[int]:
        """The statuses of the errors that it answers with."""
        if self.errors is not None:
            return self.errors
        with_body = {408, 413, 415} if self.body is not NoBody else set[int]()
        with_version = {412, 428} if self.conditional else set[int]()
        return sorted({400, 401, 403, 404, 409, 414, 429, 503} | with_body | with_version)

    @property
    def summary(self) -> str:
        """The first line of the handler's docstring."""
        return inspect.getdoc(self.handler).partition("\n")[0]  # type: ignore[union-attr]

    @property
    def in_path(self) -> Sequence[str]:
        """The fields of ``query`` that stand in the path, in order."""
        return [part[1:-1].partition(":")[0] for part in self.path.split("/") if part.startswith("{")]

    @property
    def is_table(self) -> bool:
        """Whether it answers with a :class:`Listing`, which is available as CSV too."""
        return getattr(self.answer, "__origin__", None) in (Listing, PartialListing)


Handler = TypeVar("Handler", bound=Callable[..., Any])


class EndpointRegistry:
    """Endpoints in the order in which they were declared."""

    def __init__(self) -> None:
        self.all: list[Endpoint] = []

    def get(self, path: str, query: type[Any] = NoQuery, role: Role = Role.VIEWER) -> Callable[[Handler], Handler]:
        """Declare a handler that looks."""
        return self._declare("GET", path, query, NoBody, role)

    def post(
        self,
        path: str,
        query: type[Any] = NoQuery,
        body: type[Any] = NoBody,
        role: Role = Role.OPERATOR,
        *,
        conditional: bool = False,
    ) -> Callable[[Handler], Handler]:
        """Declare a handler that acts; *conditional*: over the version that ``If-Match`` names."""
        return self._declare("POST", path, query, body, role, conditional=conditional)

    def put(self, path: str, query: type[Any], body: type[Any], role: Role) -> Callable[[Handler], Handler]:
        """Declare a handler that replaces something over a version of it."""
        return self._declare("PUT", path, query, body, role, conditional=True)

    def declare(self, method: str, path: str, query: type[Any] = NoQuery, **more: Any) -> Callable[[Handler], Handler]:
        """Declare a handler of an interface without users; *more* are fields of :class:`Endpoint`."""

        def declare(handler: Handler) -> Handler:
            self.all.append(Endpoint(method=method, path=path, query=query, handler=handler, **more))
            return handler

        return declare

    def _declare(
        self, method: str, path: str, query: type[Any], body: type[Any], role: Role, *, conditional: bool = False
    ) -> Callable[[Handler], Handler]:
        def declare(handler: Handler) -> Handler:
            answer = get_type_hints(handler)["return"]
            self.all.append(
                Endpoint(
                    method=method,
                    path=path,
                    query=query,
                    body=body,
                    role=role,
                    answer=answer,
                    handler=handler,
                    conditional=conditional,
                )
            )
            return handler

        return declare
