"""Acceptance: requests of clients are checked and made durable, many per transaction, before they are answered."""

from __future__ import annotations

import logging
import math
import threading
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Protocol

import msgspec
import sqlalchemy as sa

from millstream.anchoring.registry.eligibility import OperationRefusal
from millstream.anchoring.registry.errors import NotTriedError, QueueStoppedError, TooManyOpenError
from millstream.anchoring.registry.operation_id import operation_id
from millstream.anchoring.registry.operation_store import OperationStore
from millstream.anchoring.registry.protocol_versions import ProtocolVersion, ProtocolVersions
from millstream.anchoring.registry.states import OperationState, OperationStatus, Submission
from millstream.anchoring.sidetree import Operation, RequestError
from millstream.anchoring.sidetree.operations import parse_with_canonical, stored_operation, time_window_fault
from millstream.core.errors import MillstreamError
from millstream.core.retry import RetryPolicy
from millstream.core.sql import current_patience, waiting_with

MOST_FAULTS = 8
"""Operations of a commit that fail unexpectedly, none accepted between them, before the rest counts as undecidable."""

COMMIT_FAULTS = 64
"""Operations of a commit that fail unexpectedly before the rest is left to another commit: each of them takes several
transactions, and others wait."""

INTERNAL = "internal"
"""The code of the result of a request that could not be decided because of an unexpected exception."""

NOT_TRIED = "busy"
"""The code of the result of a request that was not tried because of the faults of others in its commit."""

COUNT_SECONDS = 1.0
"""Maximum age in seconds of the count of open operations that back-pressure uses."""

_log = logging.getLogger(__name__)


class EligibilityCheck(Protocol):
    """Says which operations may have an effect (:class:`millstream.anchoring.registry.eligibility.Eligibility`)."""

    def refusals(self, operations: Sequence[Operation]) -> Sequence[OperationRefusal | None]:
        """For each of *operations*, in order, why it is refused; None if it is accepted."""
        ...

    def accepted(self, operations: Iterable[tuple[str, Operation]]) -> None:
        """Those *operations* and their ids were stored."""
        ...


class SubmissionResult(msgspec.Struct, frozen=True):
    """The result of one request: its status, or the code and text of the refusal. ``operation`` is what was read.

    ``fault`` is the unexpected exception because of which the request could not be decided.
    """

    status: OperationStatus | None = None
    code: str | None = None
    error: str | None = None
    operation: Operation | None = None
    fault: Exception | None = None

    @classmethod
    def undecided(cls, fault: Exception) -> SubmissionResult:
        """The result of a request that the unexpected *fault* prevented."""
        return cls(code=INTERNAL, error="internal error of the registry: see the log of its process", fault=fault)

    @classmethod
    def untried(cls) -> SubmissionResult:
        """The result of a request that was not tried."""
        return cls(code=NOT_TRIED, error=str(NotTriedError()))

    def result(self) -> OperationStatus:
        """The status. Raises :class:`~millstream.anchoring.sidetree.RequestError` for what was refused,
        :class:`NotTriedError`, and the ``fault``."""
        if self.fault is not None:
            raise self.fault
        if self.code == NOT_TRIED:
            raise NotTriedError
        if self.status is None:
            raise RequestError(self.code or "refused", self.error or "the request was refused")
        return self.status


class CheckedOperation(msgspec.Struct, frozen=True, gc=False):
    """A request that keeps the rules by itself."""

    operation: Operation
    submission: Submission


CheckedRequest = CheckedOperation | SubmissionResult
"""What the check of a request gives: the operation, or the refusal."""


class OperationIntake:
    """Takes requests into *store*, under the protocol version of the day. Thread-safe.

    Requests of many callers share a transaction: while one is committed, the next one fills. If *limit* operations
    are open, further ones are refused. *notify* gets the ids of the accepted operations after the commit.
    """

    def __init__(
        self,
        store: OperationStore,
        versions: ProtocolVersions,
        *,
        judge: EligibilityCheck | None = None,
        limit: int = 1_000_000,
        retry_after: float = 5.0,
        notify: Callable[[Sequence[str]], None] | None = None,
    ) -> None:
        self._store = store
        self._versions = versions
        self._judge = judge
        self._limit = limit
        self._retry_after = retry_after
        self._notify = notify or (lambda _ids: None)
        self._lock = threading.Lock()
        self._waiting: list[_PendingSubmissions] = []
        self._committing = self._closed = False
        self._committer = ThreadPoolExecutor(1, thread_name_prefix="acceptance")
        self._counted: tuple[float, int] | None = None

    def submit(self, data: bytes) -> OperationStatus:
        """Take the request *data* (JSON). It is durable when this returns; a known one gives its present status.

        Raises :class:`~millstream.anchoring.sidetree.RequestError`, :class:`TooManyOpenError`,
        :class:`DatabaseBusyError`, and :class:`QueueStoppedError` once this is closed.
        """
        return self.submit_many([data])[0].result()

    def submit_many(self, requests: Sequence[bytes]) -> Sequence[SubmissionResult]:
        """Take all *requests* that are valid, in one transaction; an outcome for each, in order.

        Raises :class:`TooManyOpenError`, :class:`DatabaseBusyError` and :class:`QueueStoppedError`; then none was
        taken, or where many failed unexpectedly, those before them.
        """
        return self._commit_all([self.check(data) for data in requests])

    def check(self, data: bytes) -> CheckedRequest:
        """The request *data*, read and checked as far as the request itself can tell: for :meth:`commit`."""
        try:
            return CheckedOperation(*_check(data, self._version()))
        except RequestError as error:
            return SubmissionResult(code=error.code, error=str(error))
        except Exception as error:  # a fault of ours with one request is not one of those beside it
            _log.exception("a request cannot be checked")
            return SubmissionResult.undecided(error)

    def commit(self, requests: Sequence[CheckedRequest]) -> Future[Sequence[SubmissionResult]]:
        """Take all checked *requests* that are valid, in one transaction; an outcome for each comes with the commit,
        :data:`NOT_TRIED` behind many that fail unexpectedly.

        Raises :class:`QueueStoppedError`; the future raises what :meth:`submit_many` does.
        """
        group = _PendingSubmissions(requests, current_patience())
        with self._lock:
            if self._closed:
                raise QueueStoppedError
            self._waiting.append(group)
            if not self._committing:
                self._committing = True
                self._committer.submit(self._commit_waiting)
        return group.future

    def submit_checked(self, submissions: Sequence[Submission]) -> Sequence[SubmissionResult]:
        """As :meth:`submit_many`, for what :func:`check_request` has passed elsewhere: under the version that holds now
        it is not checked again."""
        return self._commit_all([self._revived(submission) for submission in submissions])

    def _commit_all(self, requests: Sequence[CheckedRequest]) -> Sequence[SubmissionResult]:
        """The outcomes of :meth:`commit`, again for those that were not tried: others have their turn in between."""
        results = list(self.commit(requests).result())
        while untried := [place for place, result in enumerate(results) if result.code == NOT_TRIED]:
            again = self.commit([requests[place] for place in untried]).result()
            for place, result in zip(untried, again, strict=True):
                results[place] = result
        return results

    def close(self) -> None:
        """Commit what waits, and take nothing more. Closing again does nothing."""
        with self._lock:
            self._closed = True
        self._committer.shutdown()

    def _version(self) -> ProtocolVersion:
        return self._versions.at(self._store.database.clock.now())

    def _revived(self, submission: Submission) -> CheckedRequest:
        """What *submission* asks for; where other rules hold by now than when it was checked, or the refusal."""
        version = self._version()
        if submission.version != version.name:
            return self.check(submission.request)
        return CheckedOperation(stored_operation(submission.request, submission.suffix), submission)

    def _commit_waiting(self) -> None:
        while True:
            with self._lock:
                groups, self._waiting = self._waiting, []
                self._committing = bool(groups)
            if not groups:
                return
            try:
                with waiting_with(min((group.patience for group in groups), key=_longest_wait)):
                    self._take(groups)
            except BaseException as error:
                for group in groups:
                    group.future.set_exception(error)

    def _take(self, groups: Sequence[_PendingSubmissions]) -> None:
        """Record all that is valid in *groups*, durably, and report to each the results of its requests."""
        self._refuse_crowd()
        checked = [[item for item in group.items if isinstance(item, CheckedOperation)] for group in groups]
        outcomes = self._decided_apart(sent, _Faults()) if (sent := [some for some in checked if some]) else ()
        if taken := [result.status.id for result in outcomes if result.status is not None]:
            self._notify(list(dict.fromkeys(taken)))
        following = iter(outcomes)
        for group in groups:
            group.future.set_result([next(following) if isinstance(i, CheckedOperation) else i for i in group.items])

    def _decided_apart(
        self, groups: Sequence[Sequence[CheckedOperation]], faults: _Faults
    ) -> Sequence[SubmissionResult]:
        """:meth:`_decided` for all of *groups*; if that fails unexpectedly, each group by itself, and each half of it,
        so that only one operation fails.

        *faults* are those of single operations in this commit; after :data:`MOST_FAULTS` since the last one that was
        accepted, the operations that are left of this group are not decided, either, and one fault more is enough in
        each group behind it, of which the others are not tried in this commit; after :data:`COMMIT_FAULTS` of a group
        its others are not tried, either.
        """
        checked = [item for group in groups for item in group]
        if (left := faults.instead()) is not None:
            return [left] * len(checked)
        try:
            results = self._decided(checked)
        except (MillstreamError, sa.exc.TimeoutError):
            raise
        except Exception as error:
            if len(groups) > 1:
                return self._decided_by_group(groups, faults)
            if len(checked) > 1:
                middle = len(checked) // 2
                halves = checked[:middle], checked[middle:]
                return [result for half in halves for result in self._decided_apart([half], faults)]
            _log.exception("operation %s cannot be decided", checked[0].submission.id)
            faults.count += 1
            faults.since_accepted.append(error)
            return [SubmissionResult.undecided(error)]
        if any(result.status is not None for result in results):
            faults.since_accepted.clear()
        return results

    def _decided_by_group(
        self, groups: Sequence[Sequence[CheckedOperation]], faults: _Faults
    ) -> Sequence[SubmissionResult]:
        results: list[SubmissionResult] = []
        for group in groups:
            faults.count = 0
            del faults.since_accepted[MOST_FAULTS - 1 :]  # another caller's operations may be in order: one is tried
            results += self._decided_apart([group], faults)
        return results

    def _decided(self, checked: Sequence[CheckedOperation]) -> Sequence[SubmissionResult]:
        """Record all of *checked* that may have an effect, durably; the result of each."""
        refusals = self._refusals(checked)
        taken = [item for item, refusal in zip(checked, refusals, strict=True) if refusal is None]
        statuses = iter(self._store.accept([item.submission for item in taken]) if taken else ())
        if self._judge is not None:
            self._judge.accepted((item.submission.id, item.operation) for item in taken)
        return [
            SubmissionResult(next(statuses), operation=item.operation)
            if refusal is None
            else SubmissionResult(code=refusal.code, error=refusal.text, operation=item.operation)
            for item, refusal in zip(checked, refusals, strict=True)
        ]

    def _refusals(self, checked: Sequence[CheckedOperation]) -> Sequence[OperationRefusal | None]:
        """The reason why each of *checked* is refused now. An operation that was accepted is never refused later."""
        now, profile = self._store.database.clock.now(), self._version().profile
        late = [time_window_fault(item.operation, profile, now) for item in checked]
        refusals = [None if text is None else OperationRefusal("not_applicable", text) for text in late]
        if self._judge is not None:
            in_time = [place for place, refusal in enumerate(refusals) if refusal is None]
            judged = self._judge.refusals([checked[place].operation for place in in_time])
            for place, refusal in zip(in_time, judged, strict=True):
                refusals[place] = refusal
        refused = [item.submission.id for item, refusal in zip(checked, refusals, strict=True) if refusal is not None]
        known = self._store.statuses(refused) if refused else {}
        still = {name for name, status in known.items() if status.state != OperationState.REJECTED}
        return [
            None if item.submission.id in still else refusal for item, refusal in zip(checked, refusals, strict=True)
        ]

    def _refuse_crowd(self) -> None:
        now = self._store.database.clock.monotonic()
        if self._counted is None or now - self._counted[0] >= COUNT_SECONDS:
            self._store.check_writable()
            self._counted = (now, self._store.open_count())
        if self._counted[1] >= self._limit:
            raise TooManyOpenError(self._counted[1], self._limit, self._retry_after)


def check_request(data: bytes, version: ProtocolVersion) -> Submission:
    """What the request *data* (JSON) asks for under *version*, as far as it keeps the rules by itself.

    A pure function, for who checks many requests side by side and hands them in by
    :meth:`OperationIntake.submit_checked`. Raises :class:`~millstream.anchoring.sidetree.RequestError`.
    """
    return _check(data, version)[1]


def _check(data: bytes, version: ProtocolVersion) -> tuple[Operation, Submission]:
    operation, request = parse_with_canonical(data, version.profile)
    return operation, Submission(
        operation_id(operation, request), operation.suffix, operation.type.value, request, version.name
    )


def _longest_wait(patience: RetryPolicy) -> float:
    return math.inf if patience.within is None else patience.within


class _Faults:
    """The unexpected faults of single operations in a commit: their number in a group, and those since one was
    accepted."""

    def __init__(self) -> None:
        self.count = 0
        self.since_accepted: list[Exception] = []

    def instead(self) -> SubmissionResult | None:
        """The result of the operations of the group that are left; None if they are to be tried."""
        in_a_row = len(self.since_accepted) >= MOST_FAULTS
        if in_a_row and self.count >= MOST_FAULTS:  # else some are of other callers
            return SubmissionResult.undecided(self.since_accepted[-1])
        return SubmissionResult.untried() if in_a_row or self.count >= COMMIT_FAULTS else None


class _PendingSubmissions:
    """What one caller has sent together, and waits for, with *patience* where the database does not answer."""

    def __init__(self, items: Sequence[CheckedRequest], patience: RetryPolicy) -> None:
        self.items, self.patience = items, patience
        self.future: Future[Sequence[SubmissionResult]] = Future()
        self.future.set_running_or_notify_cancel()  # a caller that gives up must not cancel a running commit
