"""Changing the rules by which a log is batched, from an event time on: the log of its batches keeps all of its rules.

The one who changes them holds the writer lease of the log of batches, as a batch service or stream does, and each of
these reads the rules after it took the lease (:class:`RulesRecord`). A service or stream that is at work changes them
itself, at the request of others.
"""

from __future__ import annotations

import logging

import msgspec

from millstream.batching.errors import BatchServiceError, ConfigError, SnapshotError
from millstream.batching.output_end import read_end, refuse_uncounted
from millstream.batching.rulebook import Rulebook
from millstream.batching.service_state import known_end, naming_state, read_state
from millstream.batching.snapshot import decode_snapshot
from millstream.core.canonical import canonical_json
from millstream.core.clock import MICROSECONDS, Clock
from millstream.core.decoding import prepared
from millstream.core.documents import Document
from millstream.core.timestamps import time_text
from millstream.log import Log

RULES_METADATA = "batching/rules"
"""The state of a log of batches with its :class:`Rulebook` (``docs/formats/log-states.md``)."""

CHANGE_ACTION = "change batching rules"
"""The action of the operator audit log: its target is the log of batches, its facts are the time ``since`` in ISO 8601
and the text of the ``rules``."""

_REQUEST_METADATA = "batching/rules-request"

_REQUEST_SECONDS = 60
"""For how long a request may be taken up: a service looks every few seconds, between two commits, and a stream on Spark
has to end its query before."""

_REQUEST_PAUSE = 0.1
_ANSWER_LOOKS = 100

_log = logging.getLogger(__name__)

MAX_RULES_CHARACTERS = 100_000
"""The longest rules with all changes, as canonical JSON: they are in the manifest of each anchor."""

FARTHEST_CHANGE = 31 * 24 * 3600 * MICROSECONDS
"""How far ahead of the clock new rules may begin, in microseconds: a change cannot be taken back."""


class BatchedRules(msgspec.Struct, frozen=True):
    """The *rules* by which a log of batches came to be, and the batcher's clock (microseconds) after its last batch.

    New rules may begin at ``earliest`` or later: all before may be in a batch already.
    """

    rules: Rulebook
    clock: int

    @property
    def earliest(self) -> int:
        """The earliest event time (microseconds) at which other rules may begin."""
        begun = self.rules.later[-1].since if self.rules.later else self.clock
        return max(begun, self.clock + self.rules.current.lead) + 1

    def latest(self, now: int) -> int:
        """The latest event time (microseconds) at which other rules may begin, at the time *now*."""
        return max(self.earliest, max(self.clock, now) + FARTHEST_CHANGE)


def read_rules(output: Log) -> Rulebook | None:
    """The recorded rules of the log of batches *output*; None where nobody has batched into it since an earlier release
    that recorded only changed rules.

    Raises :class:`SnapshotError` where the record is not valid.
    """
    return _decoded(output, output.metadata(RULES_METADATA))


def _decoded(output: Log, record: bytes) -> Rulebook | None:
    try:
        return msgspec.json.decode(record, type=prepared(Rulebook)) if record else None
    except (msgspec.DecodeError, ConfigError) as error:
        raise SnapshotError(
            f"cannot read the state {RULES_METADATA} of log {output.name!r}: {error}; restore the log from a backup"
        ) from error


class RulesRecord:
    """The recorded rules of the log of batches *output*, for the one who has just taken its writer lease.

    Who lost the lease since, and does not know it, cannot write the record: each new record is a new version of it.
    Raises :class:`SnapshotError` where the record is not valid.
    """

    def __init__(self, output: Log) -> None:
        self.output = output
        state = output.versioned_metadata(RULES_METADATA)
        while not output.replace_metadata(RULES_METADATA, state.value, version=state.version):
            state = output.versioned_metadata(RULES_METADATA)
        self._version = state.version + 1
        self._rules = _decoded(output, state.value)

    @property
    def is_mine(self) -> bool:
        """Whether nobody has taken the lease since."""
        return self.output.versioned_metadata(RULES_METADATA).version == self._version

    @property
    def is_empty(self) -> bool:
        """Whether no rules are recorded, as an earlier release left it."""
        return self._rules is None

    def in_force(self, given: Rulebook, *, is_blank: bool = False) -> Rulebook:
        """The rules by which the log is to be continued, of which *given* must be the latest.

        These are *given* where none are recorded, and with *is_blank*, where nothing was batched by the recorded ones.
        Raises :class:`ConfigError` where *given* are others.
        """
        recorded = self._rules
        if recorded is None or given == recorded or (is_blank and not recorded.later):
            return given
        if given != recorded.current:
            raise ConfigError(
                f"the settings have the batching rules {given.rules_text}, but the latest rules of log "
                f"{self.output.name!r} are {recorded.current.rules_text}: restore these settings (and the document "
                "batching/limits.json if it is missing), or let the new rules begin at a later time with "
                f"`millstream batch rules {self.output.name} --change`"
            )
        return recorded

    def keep(self, rules: Rulebook) -> None:
        """:meth:`write` *rules* unless they are recorded."""
        if rules != self._rules:
            self.write(rules)

    def write(self, rules: Rulebook) -> None:
        """Record *rules*, durably. Raises :class:`BatchServiceError` where another one has taken the lease."""
        if not self.output.replace_metadata(RULES_METADATA, msgspec.json.encode(rules), version=self._version):
            raise BatchServiceError(
                f"the rules of log {self.output.name!r} were not changed, because another process has taken over this "
                "log: run the command again"
            )
        self._version += 1
        self._rules = rules


def batched_rules(source: Log, output: Log, state: Document) -> BatchedRules | None:
    """By which rules *source* is batched into *output*, and how far; None where it has no batches yet.

    Raises :class:`BatchServiceError` where that cannot be known, and :class:`SnapshotError` for a *state* that is not
    valid or is of other logs.
    """
    kept, end = read_state(state, source.name, output.name), read_end(output)
    refuse_uncounted(end, known_end(kept), source, output)
    rules, clock, written = read_rules(output), None, end.sequence
    if kept is not None:
        with naming_state(state):
            former, engine = decode_snapshot(kept.snapshot)
        rules, clock = rules or former, engine.clock
    if written > (kept.position if kept else 0):
        clock = _received_at(source, written)
    if clock is None:
        return None
    if rules is None:
        raise BatchServiceError(
            f"the state {state} of the batch service is missing, so the rules of log {output.name!r} are unknown: "
            "restore the old rules in the settings, and run `millstream batch serve` once"
        )
    return BatchedRules(rules, clock)


def change_rules(
    source: Log, output: Log, state: Document, rules: Rulebook, since: int | None = None, *, clock: Clock
) -> Rulebook:
    """Let *rules* begin at the event time *since* (microseconds; None: as early as possible); returns all rules.

    The batches of earlier records stay as they are. Durable when this returns. Raises :class:`ConfigError` where
    *rules* cannot begin at *since*, are in force already, or *output* has no batches yet; :class:`WriterBusyError`
    where a service or stream writes to *output*; and the errors of :func:`batched_rules`.
    """
    with output.writer("batching"):
        record = RulesRecord(output)
        return _change(record, _batched(source, output, state), RulesRequest(rules, since), clock.now())


class RulesRequest(msgspec.Struct, frozen=True, omit_defaults=True):
    """A request to let *rules* begin at *since*; a service or stream heeds it up to the time ``until`` of its clock.

    ``refused`` is why it did not do so.
    """

    rules: Rulebook
    since: int | None
    until: int = 0
    refused: str = ""


def request_change(
    source: Log, output: Log, state: Document, rules: Rulebook, since: int | None, *, clock: Clock
) -> Rulebook:
    """:func:`change_rules` by the service or stream that is at work on *output*, which may be in another process.

    Raises the errors of :func:`change_rules`, and :class:`BatchServiceError` where nobody changes them in time, such as
    a service of an earlier release.
    """
    before = read_rules(output)
    wanted = RulesRequest(rules, since, clock.now() + _REQUEST_SECONDS * MICROSECONDS)
    _check(output, _batched(source, output, state), wanted, clock.now())
    began = clock.monotonic()
    request = msgspec.json.encode(wanted)
    output.put_metadata(_REQUEST_METADATA, request)
    while (pending := output.versioned_metadata(_REQUEST_METADATA)).value == request:
        overdue = clock.monotonic() - began > _REQUEST_SECONDS
        if overdue and output.replace_metadata(_REQUEST_METADATA, b"", version=pending.version):
            raise BatchServiceError(
                f"the rules of log {output.name!r} were not changed, because the process that writes to this log did "
                "not answer: stop this process, and run the command again"
            )
        clock.sleep(_REQUEST_PAUSE)
    return _answer(output, before, wanted, clock)


def _answer(output: Log, before: Rulebook | None, wanted: RulesRequest, clock: Clock) -> Rulebook:
    """The recorded rules once they are no longer those of *before*: they follow soon after the request was taken."""
    for _ in range(_ANSWER_LOOKS):
        recorded = read_rules(output)
        if recorded is not None and recorded.later and recorded != before:
            return _wanted_change(output, recorded, wanted)
        answer = _decoded_request(output.metadata(_REQUEST_METADATA))
        if answer is not None and msgspec.structs.replace(answer, refused="") == wanted and answer.refused:
            raise ConfigError(answer.refused)
        clock.sleep(_REQUEST_PAUSE)
    raise BatchServiceError(
        f"the rules of log {output.name!r} were not changed, because the process that writes to this log ended, or "
        "another command asked for another change: run the command again"
    )


def _wanted_change(output: Log, recorded: Rulebook, wanted: RulesRequest) -> Rulebook:
    last = recorded.later[-1]
    if last.rules != wanted.rules or wanted.since not in (None, last.since):
        raise ConfigError(
            f"another command has changed the rules of log {output.name!r} meanwhile, at {time_text(last.since)}: "
            f"compare them with `millstream batch rules {output.name}`"
        )
    return recorded


def _decoded_request(record: bytes) -> RulesRequest | None:
    """The request in *record*; None where there is none, or it is not valid."""
    try:
        return msgspec.json.decode(record, type=prepared(RulesRequest)) if record else None
    except (msgspec.DecodeError, ConfigError):
        return None


def is_requested(record: RulesRecord, now: int) -> bool:
    """Whether a change was requested of the holder of *record*, for :func:`take_request`."""
    wanted = _decoded_request(record.output.metadata(_REQUEST_METADATA))
    return wanted is not None and not wanted.refused and now <= wanted.until


def take_request(record: RulesRecord, rules: Rulebook, batched_to: int | None, now: int) -> Rulebook | None:
    """All rules after the change that was requested of the holder of *record*, which is at *batched_to* by *rules*.

    None where no change was requested, or it is not possible.
    """
    output = record.output
    request = output.versioned_metadata(_REQUEST_METADATA)
    wanted = _decoded_request(request.value)
    if wanted is None or wanted.refused or batched_to is None or not record.is_mine:
        return None
    if not output.replace_metadata(_REQUEST_METADATA, b"", version=request.version) or now > wanted.until:
        return None
    try:
        return _change(record, BatchedRules(rules, batched_to), wanted, now)
    except (ConfigError, BatchServiceError) as error:
        _log.warning("the rules of log %r are not changed: %s", output.name, error)
        refused = msgspec.json.encode(msgspec.structs.replace(wanted, refused=str(error)))
        output.replace_metadata(_REQUEST_METADATA, refused, version=request.version + 1)
        return None


def _batched(source: Log, output: Log, state: Document) -> BatchedRules:
    """What is known of *output*. Raises :class:`ConfigError` where it has no batches."""
    found = batched_rules(source, output, state)
    if found is None:
        raise ConfigError(
            f"log {output.name!r} has no batches yet: its batch service will begin with the rules in the settings"
        )
    return found


def _change(record: RulesRecord, found: BatchedRules, wanted: RulesRequest, now: int) -> Rulebook:
    output = record.output
    _check(output, found, wanted, now)
    since = found.earliest if wanted.since is None else wanted.since
    changed = found.rules.changed(since, found.clock, wanted.rules)
    length = len(canonical_json(changed.plain))
    if length > MAX_RULES_CHARACTERS:
        raise ConfigError(
            f"the rules of log {output.name!r} would have {length:,} characters with this change; the limit is "
            f"{MAX_RULES_CHARACTERS:,}: use fewer overrides"
        )
    record.write(changed)
    return changed


def _check(output: Log, found: BatchedRules, wanted: RulesRequest, now: int) -> None:
    """Raise :class:`ConfigError` where *wanted* changes nothing, or cannot begin at its time."""
    if wanted.rules == found.rules.current:
        raise ConfigError(f"log {output.name!r} has the rules in the settings already: change the settings first")
    if wanted.since is None:
        return
    refused = f"the rules of log {output.name!r} cannot change at {time_text(wanted.since)}, because"
    if wanted.since < found.earliest:
        raise ConfigError(
            f"{refused} earlier rules may have been applied there already: choose {time_text(found.earliest)} or a "
            "later time"
        )
    if wanted.since > (latest := found.latest(now)):
        raise ConfigError(
            f"{refused} this time is too far ahead, and a change cannot be withdrawn: choose a time up to "
            f"{time_text(latest)}"
        )


def _received_at(source: Log, number: int) -> int:
    for batch in source.read(number, number, ["received_at"], gaps="none"):
        for received_at in batch.arrow.column("received_at").to_pylist():
            return int(received_at)
    raise BatchServiceError(
        f"message {number} of log {source.name!r}, the last batched one, was trimmed: restore the old rules in the "
        "settings, and run `millstream batch serve` once"
    )
