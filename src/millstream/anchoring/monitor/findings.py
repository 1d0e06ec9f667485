"""The findings of a monitor of a ledger."""

from __future__ import annotations

from typing import Literal

import msgspec

from millstream.core.printable import printable

FindingKind = Literal[
    "fork", "rollback", "signature", "silence", "unavailable", "tiles", "entries", "entry", "time", "file", "anchor"
]
"""The kinds of findings.

=============  ========================================================================================
``fork``       the ledger's key signed two trees of which neither is the beginning of the other
``rollback``   a signed checkpoint is smaller than one that was seen before
``signature``  the checkpoint is not signed by a trusted key, or is not of this ledger
``silence``    there was no new checkpoint, or none with the quorum, for too long
``unavailable``  the ledger or the files could not be read now
``tiles``      a published file is missing or damaged
``entries``    the published entries do not hash to the signed root
``entry``      an entry of the signed tree does not continue the chain, or is not an entry at all
``time``       an entry is backdated or dated in the future
``file``       a file that an anchor names is missing or damaged
``anchor``     the files of an anchor are not what the entry claims, or anchor something again
=============  ========================================================================================
"""

LASTING: frozenset[FindingKind] = frozenset({"fork", "entry", "time", "anchor"})
"""Kinds of findings that later publications cannot refute: they are kept until they are acknowledged."""

MAX_KEPT = 100
"""The most findings of one kind that are kept: many odd entries must not hide a fork."""


_MAX_MESSAGE = 1000


class MonitorFinding(msgspec.Struct, frozen=True):
    """Something that is wrong with a ledger, found at ``at`` (microseconds since the epoch, UTC).

    ``number`` is the entry concerned, None where it is not one. ``checkpoints`` are signed notes that prove it: of a
    fork the one that was kept and the one that was offered.
    """

    kind: FindingKind
    message: str
    at: int
    number: int | None = None
    checkpoints: tuple[str, ...] = ()


def finding(
    kind: FindingKind, text: str, at: int, *, number: int | None = None, notes: tuple[str, ...] = ()
) -> MonitorFinding:
    """A finding whose message is *text*, shortened and on one line: parts of it may come from the ledger."""
    return MonitorFinding(kind, printable(text, _MAX_MESSAGE), at, number, notes)


class MonitorReport(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a check of a ledger, and the present findings.

    ``size`` is that of the newest checkpoint whose tree continues all earlier ones, ``cosigned`` that of the newest one
    with the quorum (None where the policy asks for none). ``audited`` entries were read and compared with the signed
    tree, and ``replayed`` of them with their files (None where that was not asked for). ``new`` is by how many entries
    the ledger has grown since the look before. ``more_findings`` is the number of lasting findings beside ``findings``,
    which are not kept.
    """

    origin: str
    size: int
    new: int
    signed_by: tuple[str, ...]
    cosigned: int | None
    witnesses: tuple[str, ...]
    audited: int | None
    replayed: int | None
    findings: tuple[MonitorFinding, ...]
    more_findings: int = 0
