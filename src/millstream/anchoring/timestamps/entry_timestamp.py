"""The time stamps of a ledger entry, as proofs have them, and their check (docs/formats/timestamp.md)."""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Sequence
from typing import Literal

import msgspec

from millstream.anchoring.errors import ProofError, TimestampError
from millstream.anchoring.timestamps.authorities import TrustedAuthorities
from millstream.anchoring.timestamps.renewal import parse_renewal, timestamp_leaf
from millstream.anchoring.timestamps.token import TimestampToken, parse_token
from millstream.anchoring.transparency.tlog_proof import checkpoint_of, require_inclusion
from millstream.core.timestamps import format_timestamp

_HASH = re.compile(r"[0-9a-f]{64}|[0-9a-f]{128}")

MOST_TOKENS = 100
"""The most time stamps and renewals that a proof may have: the check of each takes some milliseconds."""

Hash = str
"""A hash in lower-case hex."""


class TimestampRenewal(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A later ``token`` (DER in base64) for ``document``, whose tree has the time stamp before it at ``index``."""

    document: str
    index: int
    path: tuple[Hash, ...]
    token: str


class EntryTimestamp(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A ``token`` (DER in base64) for ``checkpoint``, whose tree has the entry of the proof by ``entry_path``."""

    checkpoint: str
    entry_path: tuple[Hash, ...]
    renewals: tuple[TimestampRenewal, ...]
    token: str


class DatedLeaf(msgspec.Struct, frozen=True):
    """The entry that is dated: its leaf ``hash`` (32 bytes) at ``index`` (from 0) of the ledger's tree."""

    hash: bytes
    index: int


class CheckedTimestamp(msgspec.Struct, frozen=True, kw_only=True):
    """The result for a time stamp of a proof: with status ``trusted``, that the entry existed no later than ``time``.

    Then ``authority`` is the subject of the certificate that signed it, and ``valid_until`` the time at which the last
    certificate ends by which it still holds, after ``renewals`` renewals. ``untrusted`` says that it does not hold by
    the certificates that you trust, and ``problem`` why; ``unchecked`` that you named none. ``size`` is the number of
    entries of the stamped checkpoint. Times are microseconds since the epoch (UTC).
    """

    status: Literal["trusted", "untrusted", "unchecked"]
    size: int
    authority: str | None = None
    time: int | None = None
    valid_until: int | None = None
    renewals: int = 0
    problem: str | None = None


def check_timestamps(
    stamps: Sequence[EntryTimestamp], leaf: DatedLeaf, *, authorities: TrustedAuthorities | None, now: int
) -> tuple[CheckedTimestamp, ...]:
    """What *stamps* show of the entry *leaf* at the time *now* (microseconds).

    Raises :class:`ProofError` where one does not belong to the entry, and where *authorities* trust none of them.
    """
    if (count := sum(1 + len(stamp.renewals) for stamp in stamps)) > MOST_TOKENS:
        raise ProofError(
            f"the proof has {count:,} time stamps and renewals; the limit is {MOST_TOKENS:,}; "
            "`millstream prove --no-timestamps` makes a proof without time stamps"
        )
    found = tuple(_checked_at(number, stamps, leaf, authorities, now) for number in range(len(stamps)))
    if authorities is not None and not any(each.status == "trusted" for each in found):
        if not found:
            raise ProofError(
                "the proof has no time stamps: ask the operator of the ledger for a proof with time stamps "
                "(`millstream prove` without --no-timestamps, after the entry was time-stamped), or verify without "
                "--timestamps"
            )
        if len(found) == 1:
            raise ProofError(f"the time stamp of the proof is not trusted: {found[0].problem}")
        raise ProofError(
            f"none of the {len(found):,} time stamps of the proof is trusted; the first: {found[0].problem}"
        )
    return found


def _checked_at(
    number: int, stamps: Sequence[EntryTimestamp], leaf: DatedLeaf, authorities: TrustedAuthorities | None, now: int
) -> CheckedTimestamp:
    """The result for the time stamp *number* (from 0) of *stamps*. Raises :class:`ProofError`, which names it."""
    try:
        return _checked(stamps[number], leaf, authorities, now)
    except (ProofError, TimestampError) as error:
        raise ProofError(
            f"time stamp {number + 1:,} of {len(stamps):,} in the proof is invalid: {error}; get the proof again from "
            "the node"
        ) from error


def _checked(
    stamp: EntryTimestamp, leaf: DatedLeaf, authorities: TrustedAuthorities | None, now: int
) -> CheckedTimestamp:
    checkpoint = checkpoint_of(stamp.checkpoint.encode())
    require_inclusion(leaf.hash, leaf.index, _hashes(stamp.entry_path), checkpoint)
    if authorities is None:
        return CheckedTimestamp(status="unchecked", size=checkpoint.size)
    tokens = _tokens(stamp)
    verified, problem = _verified(stamp, tokens, authorities)
    if not verified:
        return CheckedTimestamp(status="untrusted", size=checkpoint.size, problem=problem)
    first, last = verified[0], verified[-1]
    if last.ends_at < now:
        ended = f"the certificate of {last.authority} ended at {format_timestamp(last.ends_at)}, and "
        problem = ended + (problem or "no later time stamp renews it")
        return CheckedTimestamp(status="untrusted", size=checkpoint.size, problem=problem)
    return CheckedTimestamp(
        status="trusted",
        size=checkpoint.size,
        authority=first.authority,
        time=first.time,
        valid_until=last.ends_at,
        renewals=len(verified) - 1,
    )


def _tokens(stamp: EntryTimestamp) -> list[TimestampToken]:
    """The token of *stamp* and those of its renewals, each of which must cover the one before.

    Raises :class:`TimestampError`.
    """
    document, data = stamp.checkpoint.encode(), _decoded(stamp.token)
    tokens = [_token(data, document)]
    for renewal in stamp.renewals:
        later = parse_renewal(renewal.document.encode())
        later.require(renewal.index, timestamp_leaf(later.digest, document, data), _hashes(renewal.path))
        document, data = renewal.document.encode(), _decoded(renewal.token)
        tokens.append(_token(data, document))
    return tokens


def _token(data: bytes, document: bytes) -> TimestampToken:
    token = parse_token(data)
    token.require_imprint(document)
    return token


def _verified(
    stamp: EntryTimestamp, tokens: Sequence[TimestampToken], authorities: TrustedAuthorities
) -> tuple[list[TimestampToken], str | None]:
    """The first of *tokens* that hold, each made while the one before was valid, and why the next one does not."""
    documents = [stamp.checkpoint, *(renewal.document for renewal in stamp.renewals)]
    verified: list[TimestampToken] = []
    for token, document in zip(tokens, documents, strict=True):
        if verified and token.time > verified[-1].ends_at:
            return verified, f"its time stamp was renewed only later, at {format_timestamp(token.time)}"
        try:
            verified.append(authorities.verify(token.data, document.encode()))
        except TimestampError as error:
            return verified, str(error)
    return verified, None


def _decoded(token: str) -> bytes:
    try:
        return base64.b64decode(token, validate=True)
    except (binascii.Error, ValueError) as error:
        raise TimestampError("a token is not valid base64") from error


def _hashes(path: Sequence[Hash]) -> list[bytes]:
    """The hashes of *path*. Raises :class:`TimestampError`."""
    wrong = next((step for step in path if not _HASH.fullmatch(step)), None)
    if wrong is not None:
        raise TimestampError(
            f"a Merkle path contains {wrong[:80]!r}, which is not a hash of 64 or 128 lower-case hexadecimal digits"
        )
    return list(map(bytes.fromhex, path))
