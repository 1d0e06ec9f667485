"""Which ledgers have entries without a time stamp, and for how long."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from millstream.node.ledger_trees import LEDGERS, LedgerName
from millstream.status.node_view import NodeView


class StampedLedger(msgspec.Struct, frozen=True, kw_only=True):
    """The ledger ``ledger``, whose last ``unstamped`` entries have no time stamp, the first of them since ``since``.

    ``is_late`` says that this is longer than the settings allow, and ``problem`` what was wrong when an authority was
    asked last, if anything was. ``ending`` time stamps should have been renewed long ago, and the first of them ends at
    ``ends_at``. Times are microseconds since the epoch; ``since`` is None if all entries are stamped.
    """

    ledger: str
    unstamped: int
    since: int | None
    is_late: bool
    problem: str
    ending: int = 0
    ends_at: int | None = None


def stamped_ledgers(view: NodeView) -> Sequence[StampedLedger]:
    """The ledgers of the node that authorities stamp; none without authorities."""
    if not view.node.settings.anchoring.timestamp_authorities:
        return []
    return [_stamped(view, name) for name in LEDGERS if view.node.ledgers.has(name)]


def _stamped(view: NodeView, name: LedgerName) -> StampedLedger:
    settings, table = view.node.settings.anchoring, view.node.ledgers.timestamps.table(name)
    ledger, stamped = view.node.ledgers.ledger(name), table.stamped_size()
    first = ledger.entry(stamped + 1)
    allowed = settings.timestamp_interval + settings.timestamp_alarm
    ending = table.ending(view.clock.now(), view.clock.now() + settings.timestamp_renewal // 2)
    problems = [record.problem for record in table.authorities().values() if record.problem]
    return StampedLedger(
        ledger=name,
        unstamped=ledger.last_number - stamped,
        since=first.time if first else None,
        is_late=first is not None and view.clock.now() - first.time > allowed,
        problem=problems[0] if problems else "",
        ending=len(ending),
        ends_at=ending[0] if ending else None,
    )
