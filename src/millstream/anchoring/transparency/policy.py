"""Trust policies: whose signatures a checkpoint needs (c2sp.org/tlog-policy).

A policy lists logs (ledgers) and witnesses by their verifier keys. A checkpoint is trusted if one of the logs signed
it, and as many witnesses as the quorum asks for.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path

import msgspec

from millstream.anchoring.errors import CheckpointError, NoteError, TrustPolicyError
from millstream.anchoring.transparency.checkpoint import Checkpoint, parse_checkpoint
from millstream.anchoring.transparency.cosignatures import Cosignature, cosignatures
from millstream.anchoring.transparency.signed_note import (
    COSIGNATURE,
    SignedNote,
    VerifierKey,
    parse_ledger_key,
    parse_note,
    parse_verifier_key,
    verify_note,
)

MAX_POLICY_BYTES = 256 << 10
"""The most bytes of a policy that are read: some 2,500 keys."""

NO_QUORUM = "none"
"""The quorum that asks for no witness."""

_FORBIDDEN = re.compile(rb"[^\t\n\x20-\x7e\x80-\xff]")
_WORDS = re.compile(r"[^ \t]+")
_COUNT = re.compile(r"[1-9][0-9]{0,5}")


class WitnessGroup(msgspec.Struct, frozen=True):
    """A group that counts if ``least`` of its ``members`` (witnesses and groups) do."""

    least: int
    members: tuple[str, ...]


class TrustPolicy(msgspec.Struct, frozen=True, kw_only=True):
    """``logs`` whose checkpoints are trusted, ``witnesses`` and ``groups`` by name, and the ``quorum`` of them.

    ``urls`` has the submission prefixes of witnesses, by name, as far as the policy states them.
    """

    logs: tuple[VerifierKey, ...]
    witnesses: Mapping[str, VerifierKey] = {}
    groups: Mapping[str, WitnessGroup] = {}
    quorum: str = NO_QUORUM
    urls: Mapping[str, str] = {}

    def missing(self, witnesses: Collection[str]) -> int:
        """How many more witnesses must sign, beside *witnesses*, for the quorum."""
        costs = {NO_QUORUM: 0, **{name: int(name not in witnesses) for name in self.witnesses}}
        for name, group in self.groups.items():  # their members stand before them
            costs[name] = sum(sorted(costs[member] for member in group.members)[: group.least])
        return costs[self.quorum]

    def quorum_text(self) -> str:
        """Which witnesses the quorum asks for, in words: ``2 of first, second, third``."""
        return self._described(self.quorum)

    def _described(self, name: str) -> str:
        group = self.groups.get(name)
        if group is None:
            return name
        members = [f"({self._described(each)})" if each in self.groups else each for each in group.members]
        return f"{group.least} of {', '.join(members)}"


class TrustedCheckpoint(msgspec.Struct, frozen=True):
    """A checkpoint that satisfies a policy: ``signed_by`` are verifier keys of logs, ``witnesses`` their names.

    ``cosignatures`` says when each witness signed, the earliest first.
    """

    checkpoint: Checkpoint
    signed_by: tuple[str, ...]
    witnesses: tuple[str, ...]
    cosignatures: tuple[Cosignature, ...]


def trusting(keys: Sequence[VerifierKey]) -> TrustPolicy:
    """The policy that trusts the ledgers of *keys*, without witnesses."""
    return TrustPolicy(logs=tuple(keys))


def check_checkpoint(data: bytes, policy: TrustPolicy) -> TrustedCheckpoint:
    """The checkpoint in *data* (a signed note), which must satisfy *policy*.

    Raises :class:`NoteError` where no log of the policy signed it, where a signature of a known key does not hold, and
    where too few witnesses signed it.
    """
    note = parse_note(data)
    checkpoint = parse_checkpoint(note)
    logs = [key for key in policy.logs if key.name == checkpoint.origin]
    if not logs:
        trusted = ", ".join(sorted({key.name for key in policy.logs})[:5])
        raise CheckpointError(
            f"the checkpoint belongs to the ledger {checkpoint.origin[:80]!r}, but the keys given or in the policy are "
            f"of {trusted}: give the key of this ledger with --key, or add it to the policy"
        )
    verified = {str(each.key) for each in verify_note(note, logs)}
    times = cosignature_times(note, policy)
    if policy.missing(times):
        names = ", ".join(sorted(times)) or "none"
        raise NoteError(
            f"too few witnesses signed the checkpoint of the ledger {checkpoint.origin}: the quorum "
            f"{policy.quorum!r} needs {policy.quorum_text()}; signed by: {names}; make the proof again when the quorum "
            "has cosigned (`millstream prove --require-quorum`)"
        )
    signed_by = tuple(str(key) for key in logs if str(key) in verified)
    return TrustedCheckpoint(checkpoint, signed_by, tuple(sorted(times)), cosignatures(times))


def cosigning_witnesses(note: SignedNote, policy: TrustPolicy) -> set[str]:
    """The names of the witnesses of *policy* that signed *note*. Raises :class:`NoteError` for a wrong signature."""
    return set(cosignature_times(note, policy))


def cosignature_times(note: SignedNote, policy: TrustPolicy) -> dict[str, int]:
    """When each witness of *policy* that signed *note* did so by its own clock (seconds since the epoch, UTC).

    Raises :class:`NoteError` for a wrong signature.
    """
    keys = {str(key): name for name, key in policy.witnesses.items()}
    known = {(key.name, key.key_id) for key in policy.witnesses.values()}
    if not any((each.name, each.key_id) in known for each in note.signatures):
        return {}
    return {keys[str(each.key)]: each.time or 0 for each in verify_note(note, list(policy.witnesses.values()))}


def read_policy(path: Path) -> TrustPolicy:
    """The policy in the file *path*. Raises :class:`TrustPolicyError`."""
    try:
        with path.open("rb") as file:
            return parse_policy(file.read(MAX_POLICY_BYTES + 1), f"the trust policy {path}")
    except OSError as error:
        raise TrustPolicyError(f"cannot read the trust policy {path}: {error.strerror}") from error


def with_ledgers(policy: TrustPolicy, keys: Sequence[VerifierKey]) -> TrustPolicy:
    """*policy*, which trusts the ledgers of *keys* as well. Raises :class:`TrustPolicyError` where it trusts none."""
    if not keys and not policy.logs:
        raise TrustPolicyError(
            "the trust policy names no ledger: add a line `log KEY` to the policy, or give the verifier key of the "
            "ledger"
        )
    return msgspec.structs.replace(policy, logs=(*policy.logs, *keys))


def parse_policy(data: bytes, what: str = "the trust policy") -> TrustPolicy:
    """The policy in *data*, which errors call *what*. Raises :class:`TrustPolicyError` with the line that is wrong."""
    if len(data) > MAX_POLICY_BYTES:
        raise TrustPolicyError(f"{what} has more than {MAX_POLICY_BYTES:,} bytes, the limit: shorten the policy")
    if forbidden := _FORBIDDEN.search(data):
        place, character = data.count(b"\n", 0, forbidden.start()) + 1, forbidden[0][0]
        advice = "save the file with LF line ends" if character == ord("\r") else "remove it"
        raise TrustPolicyError(f"line {place} of {what} contains the control character 0x{character:02x}: {advice}")
    reader = _PolicyReader()
    for number, line in enumerate(data.decode("utf-8", "surrogateescape").split("\n"), 1):
        words = _WORDS.findall(line)
        if not words or words[0].startswith("#"):
            continue
        try:
            reader.read(words)
        except (TrustPolicyError, NoteError) as error:
            raise TrustPolicyError(f"line {number} of {what}: {error}") from error
    return reader.policy(what)


class _PolicyReader:
    """Reads a policy line by line: groups and the quorum name only what stands before them."""

    def __init__(self) -> None:
        self._logs: list[VerifierKey] = []
        self._witnesses: dict[str, VerifierKey] = {}
        self._groups: dict[str, WitnessGroup] = {}
        self._members: set[str] = set()
        self._keys: Mapping[str, set[bytes]] = {"log": set(), "witness": set()}
        self._quorum: str | None = None
        self._urls: dict[str, str] = {}
        self._lines: Mapping[str, Callable[[Sequence[str]], None]] = {
            "log": self._log,
            "witness": self._witness,
            "group": self._group,
            "quorum": self._set_quorum,
        }

    def read(self, words: Sequence[str]) -> None:
        """Take in the line of *words*."""
        if words[0] not in self._lines:
            raise TrustPolicyError(f"unknown keyword {_shown(words[0])}: use log, witness, group or quorum")
        self._lines[words[0]](words[1:])

    def policy(self, what: str) -> TrustPolicy:
        """The whole policy, which errors call *what*."""
        if self._quorum is None:
            raise TrustPolicyError(f"{what} has no quorum line: add one, such as `quorum none`")
        return TrustPolicy(
            logs=tuple(self._logs), witnesses=self._witnesses, groups=self._groups, quorum=self._quorum, urls=self._urls
        )

    def _log(self, words: Sequence[str]) -> None:
        if len(words) not in (1, 2):
            raise TrustPolicyError("invalid log line: write `log <verifier key> [<url>]`")
        self._logs.append(self._new_key("log", words[0], parse_ledger_key))

    def _witness(self, words: Sequence[str]) -> None:
        if len(words) not in (2, 3):
            raise TrustPolicyError("invalid witness line: write `witness <name> <verifier key> [<url>]`")
        key = self._new_key("witness", words[1], parse_verifier_key)
        if key.kind != COSIGNATURE:
            raise TrustPolicyError(f"{key} is not the key of a witness: give a key of type 0x04")
        name = self._new_name(words[0])
        self._witnesses[name] = key
        if words[2:]:
            self._urls[name] = words[2]

    def _group(self, words: Sequence[str]) -> None:
        if len(words) < 3:
            raise TrustPolicyError("invalid group line: write `group <name> <number, all or any> <member> …`")
        name, count, members = self._new_name(words[0]), words[1], words[2:]
        for member in members:
            self._require(member)
            if member in self._members:
                raise TrustPolicyError(f"{_shown(member)} is already a member of a group: list each member only once")
            self._members.add(member)
        least = {"all": len(members), "any": 1}.get(count) or (int(count) if _COUNT.fullmatch(count) else 0)
        if not 1 <= least <= len(members):
            raise TrustPolicyError(f"invalid number of members {_shown(count)}: write all, any, or 1 to {len(members)}")
        self._groups[name] = WitnessGroup(least, tuple(members))

    def _set_quorum(self, words: Sequence[str]) -> None:
        if self._quorum is not None:
            raise TrustPolicyError("a second quorum line: a policy must have exactly one")
        if len(words) != 1:
            raise TrustPolicyError("invalid quorum line: write `quorum <name>` or `quorum none`")
        if words[0] != NO_QUORUM:
            self._require(words[0])
        self._quorum = words[0]

    def _new_name(self, name: str) -> str:
        _require_utf8(name, f"the name {_shown(name)}")  # it is printed, also as JSON
        if name == NO_QUORUM:
            raise TrustPolicyError(f"the name {NO_QUORUM!r} is reserved: choose another name")
        if name in self._witnesses or name in self._groups:
            raise TrustPolicyError(f"the name {_shown(name)} is already in use: choose another name")
        return name

    def _new_key(self, kind: str, text: str, parse: Callable[[str], VerifierKey]) -> VerifierKey:
        _require_utf8(text, "the name in a verifier key")
        key = parse(text)
        if key.public in self._keys[kind]:
            raise TrustPolicyError(f"the public key of {key} is listed twice: keep one of the lines")
        self._keys[kind].add(key.public)
        return key

    def _require(self, name: str) -> None:
        if name not in self._witnesses and name not in self._groups:
            raise TrustPolicyError(f"unknown witness or group {_shown(name)}: define it on an earlier line")


def _require_utf8(text: str, what: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise TrustPolicyError(f"{what} is not UTF-8: save the policy as UTF-8") from error


def _shown(word: str) -> str:
    return repr(word[:80])
