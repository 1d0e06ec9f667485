"""Having the checkpoints of a ledger time-stamped at an interval; nothing waits for the authorities."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Protocol

import msgspec

from millstream.anchoring.cas import Cas
from millstream.anchoring.errors import AnchoringError, TimestampError
from millstream.anchoring.retry_pause import RetryPause
from millstream.anchoring.timestamps.client import Digest, TimestampClient
from millstream.anchoring.timestamps.renewal import TimestampTree
from millstream.anchoring.timestamps.stamped_entries import renewal_chain
from millstream.anchoring.timestamps.timestamp_tables import AuthorityRecord, TimestampRecord, TimestampTable
from millstream.anchoring.timestamps.token import TimestampToken
from millstream.anchoring.transparency.entry_proof import SignedHead
from millstream.core.amounts import counted
from millstream.core.clock import MICROSECONDS, Clock
from millstream.core.sql import in_same_fence
from millstream.core.timestamps import format_timestamp

AUTHORITY_SECONDS = 10.0
"""How long an authority may take for its answer."""

_FIRST_PAUSE, _LONGEST_PAUSE = 5.0, 600.0
_MOST_THREADS = 16
_log = logging.getLogger(__name__)


class ReleasedTree(Protocol):
    """The durable tree of a ledger, as far as time stamps are concerned; see ``LedgerTree``."""

    def released(self) -> SignedHead | None:
        """The newest checkpoint that may be given out."""
        ...


class TimestampRules(msgspec.Struct, frozen=True, kw_only=True):
    """When to ask: each authority at most once in ``interval``, for the ``digest`` of a checkpoint.

    Time stamps are renewed ``renewal`` before their certificate ends, or if their digest is ``retired``. Times are
    microseconds.
    """

    interval: int
    digest: Digest
    renewal: int
    retired: Collection[str] = ()


class TimestampCollector:
    """Has the checkpoints of *tree* stamped by *clients*, keeps the tokens in *cas*, and lists them in *table*.

    A token is durable in *cas* before it is listed: a process that ends in between leaves a file that nothing names,
    and the next one asks again. Nothing waits for an authority: one that does not answer is asked again after a pause.
    """

    def __init__(
        self,
        tree: ReleasedTree,
        clients: Sequence[TimestampClient],
        *,
        table: TimestampTable,
        cas: Cas,
        clock: Clock,
        rules: TimestampRules,
    ) -> None:
        self._tree = tree
        self._clients = clients
        self._table = table
        self._cas = cas
        self._clock = clock
        self._rules = rules
        self._pauses = {client.name: RetryPause(_FIRST_PAUSE, _LONGEST_PAUSE) for client in clients}
        self._turn = threading.Lock()
        self._renewals_at = 0.0
        """The time of the next search for time stamps to renew (monotonic seconds)."""

    def collect(self, *, now: bool = False) -> Sequence[TimestampRecord]:
        """Ask the authorities that are due to stamp the newest checkpoint, then one to renew the time stamps that need
        it; returns the new time stamps.

        An authority is due once the interval since its last token is over, if the ledger has grown since. With *now*
        neither the interval nor a pause counts.
        """
        newest = self._tree.released()
        if newest is None or newest.size == 0:
            return []
        with self._turn:
            due = [client for client in self._clients if self._is_due(client, newest, now=now)]
            answers: list[TimestampRecord | None] = []
            if due:
                with ThreadPoolExecutor(min(len(due), _MOST_THREADS), "timestamps") as threads:
                    answers += threads.map(in_same_fence(lambda client: self._stamp(client, newest)), due)
            if now or self._renewals_at <= self._clock.monotonic():
                self._renewals_at = self._clock.monotonic() + self._rules.interval / MICROSECONDS
                answers.append(self._renew())
        return [record for record in answers if record is not None]

    def problems(self) -> dict[str, str]:
        """The reasons why configured authorities gave no time stamp at the last request, by URL."""
        said = self._table.authorities()
        names = [client.name for client in self._clients if client.name in said]
        return {name: problem for name in names if (problem := said[name].problem) is not None}

    def _is_due(self, client: TimestampClient, newest: SignedHead, *, now: bool) -> bool:
        if not now and not self._pauses[client.name].is_over(self._clock.monotonic()):
            return False
        last = self._table.newest(client.name)
        if last is None or (last.size or 0) >= newest.size:
            return last is None
        return now or last.received_at + self._rules.interval <= self._clock.now()

    def _stamp(self, client: TimestampClient, newest: SignedHead) -> TimestampRecord | None:
        """Have *newest* stamped by *client*; None where there is no token, which is then noted."""
        return self._asked(
            client,
            lambda: client.stamp(newest.data, self._rules.digest),
            lambda token: self._keep(client, token, newest.data, size=newest.size),
        )

    def _renew(self) -> TimestampRecord | None:
        """Have the head of all time stamps stamped, if one of them ends soon or has a retired digest.

        The authorities are asked one after the other, until one gives a token that makes these hold for longer.
        """
        records = self._table.records()
        weak = self._to_renew(records)
        if not weak:
            return None
        document = TimestampTree(self._rules.digest, records, self._cas).document.encode()

        def keep(client: TimestampClient, token: TimestampToken) -> TimestampRecord:
            if not any(token.ends_at > each.ends_at or each.digest in self._rules.retired for each in weak):
                raise TimestampError(
                    f"the token of {token.authority} cannot renew {counted(len(weak), 'time stamp')}: the certificate "
                    f"of this authority expires at {format_timestamp(token.ends_at)}, no later than theirs. Add an "
                    "authority whose certificate expires later (setting anchoring.timestamp_authorities)"
                )
            return self._keep(client, token, document, renews=len(records))

        for client in self._clients:
            record = self._asked(client, partial(client.stamp, document, self._rules.digest), partial(keep, client))
            if record is not None:
                return record
        return None

    def _to_renew(self, records: Sequence[TimestampRecord]) -> Sequence[TimestampRecord]:
        """The last of each chain of renewals that ends soon, or has a retired digest, and still holds."""
        renewals, now = [record for record in records if record.renews is not None], self._clock.now()
        ends = (renewal_chain(record, renewals)[-1] for record in records if record.size is not None)
        return [
            last
            for last in ends
            if now <= last.ends_at and (last.ends_at - now <= self._rules.renewal or last.digest in self._rules.retired)
        ]

    def _asked(
        self,
        client: TimestampClient,
        ask: Callable[[], TimestampToken],
        keep: Callable[[TimestampToken], TimestampRecord],
    ) -> TimestampRecord | None:
        asked_at, record, problem = self._clock.now(), None, None
        try:
            record = keep(ask())
        except AnchoringError as error:
            problem = str(error) if client.name in str(error) else f"{client.name}: {error}"
        self._pauses[client.name].note(self._clock.monotonic(), failed=problem is not None)
        before = self._table.authorities().get(client.name)
        if problem is not None and (before is None or before.problem != problem):
            _log.warning("no time stamp: %s", problem)
        answered_at = record.received_at if record else before.answered_at if before else None
        self._table.put_authority(client.name, AuthorityRecord(asked_at, answered_at, problem))
        return record

    def _keep(
        self,
        client: TimestampClient,
        token: TimestampToken,
        document: bytes,
        *,
        size: int | None = None,
        renews: int | None = None,
    ) -> TimestampRecord:
        """Store *token* and *document*, then list them."""
        document_cid, token_cid = self._cas.put_many([document, token.data])
        return self._table.add(
            TimestampRecord(
                number=0,
                authority=client.name,
                name=token.authority,
                size=size,
                renews=renews,
                time=token.time,
                ends_at=token.ends_at,
                digest=token.digest,
                document=document_cid,
                token=token_cid,
                received_at=self._clock.now(),
            )
        )
