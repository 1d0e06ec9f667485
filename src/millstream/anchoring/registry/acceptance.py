"""Acceptance: what clients send is checked and made durable, many at a time, before anybody is told so."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from collections.abc import Set as AbstractSet
from typing import Protocol

import msgspec

from millstream.anchoring.registry.errors import CrowdedError
from millstream.anchoring.registry.operation_store import OperationStore
from millstream.anchoring.registry.states import OperationStatus, Submission
from millstream.anchoring.registry.versions import Versions
from millstream.anchoring.sidetree import Operation, OperationType, RequestError, parse_request
from millstream.anchoring.sidetree.encoding import canonical, hash_bytes

COUNT_SECONDS = 1.0
"""How old the count of operations under way may be when back-pressure is judged."""


class KnownSuffixes(Protocol):
    """Says which DIDs may be changed (:class:`millstream.anchoring.registry.resolver.Resolver`)."""

    def refusal(self, operation: Operation) -> str | None:
        """Why *operation* cannot be valid now; None where it may be."""
        ...


class Outcome(msgspec.Struct, frozen=True):
    """What became of one request of several: its status, or the code and text of the refusal."""

    status: OperationStatus | None = None
    code: str | None = None
    error: str | None = None


class Acceptance:
    """Takes requests into *store*, under the protocol version of the day. Thread-safe.

    Requests of many threads share a transaction: while one is committed, the next one fills. Where *limit* operations
    are under way, no more are taken. *notify* is told the ids of what was accepted, after the commit.
    """

    def __init__(
        self,
        store: OperationStore,
        versions: Versions,
        *,
        known: KnownSuffixes | None = None,
        limit: int = 1_000_000,
        retry_after: float = 5.0,
        notify: Callable[[Sequence[str]], None] | None = None,
    ) -> None:
        self._store = store
        self._versions = versions
        self._known = known
        self._limit = limit
        self._retry_after = retry_after
        self._notify = notify or (lambda _ids: None)
        self._changed = threading.Condition()
        self._waiting: list[_Ticket] = []
        self._committing = False
        self._counted: tuple[float, int] | None = None

    def submit(self, data: bytes) -> OperationStatus:
        """Take the request *data* (JSON). It is durable when this returns; a known one gives its present status.

        Raises :class:`~millstream.anchoring.sidetree.RequestError`, :class:`CrowdedError`, :class:`DatabaseBusyError`.
        """
        self._refuse_crowd()
        ticket = _Ticket([self.checked(data)])
        self._commit(ticket)
        return ticket.result()[0]

    def submit_many(self, requests: Sequence[bytes]) -> Sequence[Outcome]:
        """Take all *requests* that are valid, in one transaction; an outcome for each, in order.

        Raises :class:`CrowdedError` and :class:`DatabaseBusyError`; then none was taken.
        """
        self._refuse_crowd()
        created = set[str]()
        checked = [self._outcome(data, created) for data in requests]
        submissions = [item for item in checked if isinstance(item, Submission)]
        ticket = _Ticket(submissions)
        if submissions:
            self._commit(ticket)
        statuses = iter(ticket.result() if submissions else ())
        return [Outcome(next(statuses)) if isinstance(item, Submission) else item for item in checked]

    def checked(self, data: bytes, created: AbstractSet[str] = frozenset()) -> Submission:
        """The submission in *data*, by the rules of the current version; *created* are suffixes that may be changed
        although they are not recorded yet. Raises ``RequestError``."""
        version = self._versions.at(self._store.database.clock.now())
        operation = parse_request(data, version.profile)
        is_new = operation.type == OperationType.CREATE or operation.suffix in created
        if self._known is not None and not is_new:
            refusal = self._known.refusal(operation)
            if refusal is not None:
                raise RequestError("not_applicable", refusal)
        request = canonical(operation.request)
        return Submission(hash_bytes(request), operation.suffix, operation.type.value, request, version.name)

    def _outcome(self, data: bytes, created: set[str]) -> Submission | Outcome:
        """The submission in *data*, whose create joins *created*, or the refusal."""
        try:
            submission = self.checked(data, created)
        except RequestError as error:
            return Outcome(code=error.code, error=str(error))
        if submission.type == OperationType.CREATE:
            created.add(submission.suffix)
        return submission

    def _refuse_crowd(self) -> None:
        now = self._store.database.clock.monotonic()
        if self._counted is None or now - self._counted[0] >= COUNT_SECONDS:
            self._counted = (now, self._store.open_count())
        if self._counted[1] >= self._limit:
            raise CrowdedError(self._counted[1], self._limit, self._retry_after)

    def _commit(self, ticket: _Ticket) -> None:
        """Whoever finds nobody committing commits for all who wait; the others wait for that."""
        with self._changed:
            self._waiting.append(ticket)
            while not ticket.done and self._committing:
                self._changed.wait()
            if ticket.done:
                return
            tickets, self._waiting = self._waiting, []
            self._committing = True
        try:
            self._store_tickets(tickets)
        finally:
            with self._changed:
                self._committing = False
                self._changed.notify_all()

    def _store_tickets(self, tickets: Sequence[_Ticket]) -> None:
        together = [submission for ticket in tickets for submission in ticket.submissions]
        try:
            statuses = list(self._store.accept(together))
        except BaseException as error:
            for ticket in tickets:
                ticket.fail(error)
            return
        for ticket in tickets:
            ticket.statuses, statuses = statuses[: len(ticket.submissions)], statuses[len(ticket.submissions) :]
        self._notify(list(dict.fromkeys(submission.id for submission in together)))


class _Ticket:
    """What one caller waits for."""

    def __init__(self, submissions: Sequence[Submission]) -> None:
        self.submissions = submissions
        self.statuses: Sequence[OperationStatus] | None = None
        self._error: BaseException | None = None

    @property
    def done(self) -> bool:
        return self.statuses is not None or self._error is not None

    def fail(self, error: BaseException) -> None:
        self._error = error

    def result(self) -> Sequence[OperationStatus]:
        if self._error is not None:
            raise self._error
        assert self.statuses is not None, "a ticket that is done has statuses or an error"
        return self.statuses
