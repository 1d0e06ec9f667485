"""Changes with an unknown outcome: the audit log lacks them until they are settled."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime

import msgspec

from millstream.core.amounts import counted
from millstream.core.clock import MICROSECONDS
from millstream.core.shown_commands import arguments
from millstream.stores.audit import AuditedStore, AuditIntent, AuditOutbox, HolderState, describe_holder
from millstream.stores.protocol import Store

MOST_PATIENCE = 3600 * MICROSECONDS
"""For how long a change may be open while its process runs, before an operator should look at it."""


class OpenChanges(msgspec.Struct, frozen=True, kw_only=True):
    """``count`` open changes of a space that one process has begun, the first of them at ``oldest`` (microseconds).

    ``state`` is what is known of that process, ``remedy`` says what to do.
    """

    store: str
    space: str
    holder: str
    count: int
    oldest: int
    state: HolderState
    remedy: str

    def is_left(self, now: int) -> bool:
        """Whether an operator has to act: the process does not end them, or takes too long."""
        return self.state != HolderState.RUNNING or now - self.oldest > MOST_PATIENCE

    def __str__(self) -> str:
        since = f"{datetime.fromtimestamp(self.oldest / MICROSECONDS, UTC):%Y-%m-%d %H:%M:%S} UTC"
        who, verb = describe_holder(self.holder), "is" if self.count == 1 else "are"
        return (
            f"{self.store}/{self.space}: {counted(self.count, 'change')} of {who} {verb} open since {since}, and "
            f"missing from the audit log: {self.remedy}"
        )


_REMEDIES = {
    HolderState.RUNNING: "the process still runs, and settles them, or the next start after its end does",
    HolderState.ENDED: "the process has ended, and the store does not say whether they happened; see that it answers "
    "(`millstream doctor`), and run this again",
    HolderState.UNKNOWN: "the process ran on another machine or in another container; once it has ended, stop "
    "all processes that write to the stores, and run `millstream mill audit --recover`",
}


def open_changes(
    outbox: AuditOutbox, stores: Mapping[str, Store], store: str | None = None, space: str | None = None
) -> Sequence[OpenChanges]:
    """The open changes of all spaces, or of the store or space named, by space and process, the oldest first.

    *stores* are those in the settings, of which one whose disk is not mounted can be looked up, too.
    """
    groups: dict[tuple[str, str, str], list[AuditIntent]] = {}
    for intent in outbox.open_intents(others=True):
        event = intent.event
        if store in (None, event.store) and space in (None, event.space):
            groups.setdefault((event.store, event.space, intent.holder), []).append(intent)
    return [_described(outbox, stores, intents) for intents in groups.values()]


def _described(outbox: AuditOutbox, stores: Mapping[str, Store], intents: Sequence[AuditIntent]) -> OpenChanges:
    first = intents[0]
    state = outbox.holders.state(first.holder)
    return OpenChanges(
        store=first.event.store,
        space=first.event.space,
        holder=first.holder,
        count=len(intents),
        oldest=first.event.at,
        state=state,
        remedy=_remedy(first.event.store, state, stores),
    )


def _remedy(store: str, state: HolderState, stores: Mapping[str, Store]) -> str:
    """What to do about open changes of *store*: only an audited store can be asked whether they happened."""
    if isinstance(stores.get(store), AuditedStore):
        return _REMEDIES[state]
    first = ""
    if state == HolderState.RUNNING:  # no start with these settings would settle them
        first = "the process still runs with earlier settings: stop this process; then: "
    if store in stores:
        return f"{first}store {store!r} is not audited any more: set stores.{store}.audited to settle them, {_RECOVER}"
    return (
        f"{first}store {store!r} is not in the settings: put it back as an audited store to settle them, {_RECOVER}; "
        f"if it was removed for good, `millstream mill retire {arguments(store)}` ends them with its other records"
    )


_RECOVER = "restart the processes of the node, and run `millstream mill audit --recover`"
