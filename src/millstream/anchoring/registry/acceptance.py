"""Acceptance: what clients send is checked and made durable, many at a time, before anybody is told so."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Protocol

import msgspec

from millstream.anchoring.registry.errors import CrowdedError
from millstream.anchoring.registry.operation_store import OperationStore
from millstream.anchoring.registry.states import OperationStatus, Submission
from millstream.anchoring.registry.versions import Versions
from millstream.anchoring.sidetree import Operation, RequestError, parse_request
from millstream.anchoring.sidetree.encoding import canonical, hash_bytes

COUNT_SECONDS = 1.0
"""How old the count of operations under way may be when back-pressure is judged."""


class KnownSuffixes(Protocol):
    """Says which DIDs may be changed (:class:`millstream.anchoring.registry.history.History`)."""

    def refusals(self, operations: Sequence[Operation]) -> Sequence[str | None]:
        """Why each of *operations*, one after the other, cannot be valid now; None where it may be."""
        ...


class Outcome(msgspec.Struct, frozen=True):
    """What became of one request: its status, or the code and text of the refusal. ``operation`` is what was read."""

    status: OperationStatus | None = None
    code: str | None = None
    error: str | None = None
    operation: Operation | None = None

    def result(self) -> OperationStatus:
        """The status. Raises :class:`~millstream.anchoring.sidetree.RequestError` for what was refused."""
        if self.status is None:
            raise RequestError(self.code or "refused", self.error or "the request was refused")
        return self.status


class Acceptance:
    """Takes requests into *store*, under the protocol version of the day. Thread-safe.

    Requests of many callers share a transaction: while one is committed, the next one fills. Where *limit* operations
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
        self._lock = threading.Lock()
        self._waiting: list[_Group] = []
        self._committing = False
        self._committer = ThreadPoolExecutor(1, thread_name_prefix="acceptance")
        self._counted: tuple[float, int] | None = None

    def submit(self, data: bytes) -> OperationStatus:
        """Take the request *data* (JSON). It is durable when this returns; a known one gives its present status.

        Raises :class:`~millstream.anchoring.sidetree.RequestError`, :class:`CrowdedError`, :class:`DatabaseBusyError`.
        """
        return self.submit_many([data])[0].result()

    def submit_many(self, requests: Sequence[bytes]) -> Sequence[Outcome]:
        """Take all *requests* that are valid, in one transaction; an outcome for each, in order.

        Raises :class:`CrowdedError` and :class:`DatabaseBusyError`; then none was taken.
        """
        return self.submit_nowait(requests).result()

    def submit_nowait(self, requests: Sequence[bytes]) -> Future[Sequence[Outcome]]:
        """As :meth:`submit_many`; the requests are read and checked now, and the outcomes come with the commit."""
        group = _Group([self._checked(data) for data in requests])
        with self._lock:
            self._waiting.append(group)
            if not self._committing:
                self._committing = True
                self._committer.submit(self._commit_waiting)
        return group.future

    def close(self) -> None:
        """Commit what waits; nothing may be submitted after this. Closing again does nothing."""
        self._committer.shutdown()

    def _checked(self, data: bytes) -> _Checked | Outcome:
        """What *data* asks for, as far as the request itself can tell, or the refusal."""
        version = self._versions.at(self._store.database.clock.now())
        try:
            operation = parse_request(data, version.profile)
            request = canonical(operation.request)
        except RequestError as error:
            return Outcome(code=error.code, error=str(error))
        named = Submission(hash_bytes(request), operation.suffix, operation.type.value, request, version.name)
        return _Checked(operation, named)

    def _commit_waiting(self) -> None:
        while True:
            with self._lock:
                groups, self._waiting = self._waiting, []
                self._committing = bool(groups)
            if not groups:
                return
            try:
                self._take(groups)
            except BaseException as error:
                for group in groups:
                    group.future.set_exception(error)

    def _take(self, groups: Sequence[_Group]) -> None:
        """Record all that is valid in *groups*, durably, and tell each what became of its requests."""
        self._refuse_crowd()
        checked = [item for group in groups for item in group.items if isinstance(item, _Checked)]
        refusals = self._known.refusals([item.operation for item in checked]) if self._known else [None] * len(checked)
        fit = [item.submission for item, refusal in zip(checked, refusals, strict=True) if refusal is None]
        statuses = iter(self._store.accept(fit)) if fit else iter(())
        outcomes = iter(
            [
                Outcome(next(statuses), operation=item.operation)
                if refusal is None
                else Outcome(code="not_applicable", error=refusal, operation=item.operation)
                for item, refusal in zip(checked, refusals, strict=True)
            ]
        )
        if fit:
            self._notify(list(dict.fromkeys(submission.id for submission in fit)))
        for group in groups:
            group.future.set_result([next(outcomes) if isinstance(i, _Checked) else i for i in group.items])

    def _refuse_crowd(self) -> None:
        now = self._store.database.clock.monotonic()
        if self._counted is None or now - self._counted[0] >= COUNT_SECONDS:
            self._counted = (now, self._store.open_count())
        if self._counted[1] >= self._limit:
            raise CrowdedError(self._counted[1], self._limit, self._retry_after)


class _Checked(msgspec.Struct, frozen=True):
    """A request that keeps the rules by itself."""

    operation: Operation
    submission: Submission


class _Group:
    """What one caller has sent together, and waits for."""

    def __init__(self, items: Sequence[_Checked | Outcome]) -> None:
        self.items = items
        self.future: Future[Sequence[Outcome]] = Future()
        self.future.set_running_or_notify_cancel()  # a caller who leaves must not undo what is being committed
