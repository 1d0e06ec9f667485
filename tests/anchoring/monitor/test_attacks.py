"""The table of attacks: what an operator who holds key and disks does, and who finds it, by which words.

Everything is real but the clock of the operator and of the monitor: batches and files, the ledger's key, tiles over
HTTP, a witness as a process, the monitor, and ``millstream verify``. docs/explanation/trust.md has the table.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec
import pytest

from millstream.anchoring import MemoryLedger, prove
from millstream.anchoring.errors import WitnessRefusalError
from millstream.anchoring.ledger import LedgerEntry
from millstream.anchoring.monitor import LedgerMonitor, MonitorRules, MonitorStateFile, open_published
from millstream.anchoring.transparency.entry_proof import EntryProof, prove_entry
from millstream.anchoring.transparency.policy import check_checkpoint, parse_policy
from millstream.anchoring.transparency.signed_note import SignedNote, SigningKey, encode_note, parse_note
from millstream.anchoring.witness import WitnessClient
from millstream.core.clock import MICROSECONDS, VirtualClock
from millstream.testing.batches import CONFIG, make_batch
from support.commands import run_command
from support.published_ledger import PublishedLedger, served
from support.signed_ledger import Head, MemorySignedLedger
from support.witness_process import WitnessProcess

HOUR = 3600 * MICROSECONDS
START = 1_790_000_000 * MICROSECONDS
TRUST_PAGE = Path(__file__).parents[3] / "docs" / "explanation" / "trust.md"

FOUND_BY: Mapping[str, Mapping[str, str]] = {
    "an old entry is rewritten": {
        "verify --policy": "too few witnesses signed the checkpoint",
        "verify --ledger-head": "pinned ledger head [0-9a-f]{64} is not among the proof's entries 2 to 4",
        "witness": "status 422: the tree of 4 leaves does not begin with the tree of 3 leaves",
        "monitor": "fork: .*signed trees of 3 and 4 entries, of which the larger does not begin with the smaller",
    },
    "the ledger is truncated": {
        "verify --ledger-head": "pinned ledger head .* is not among the proof's entries 2 to 2",
        "witness": "has cosigned a tree of 3 entries, but the checkpoint has only 2",
        "monitor": "rollback: the ledger .* has 2 entries, but had 3 before: the ledger was truncated or restored",
    },
    "one client gets a fork of the ledger": {
        "verify --policy": "too few witnesses signed the checkpoint",
        "monitor --compare": "fork: .*signed two trees of 4 entries with different roots",
    },
    "two different heads of the same size are signed": {
        "verify --policy": "too few witnesses signed the checkpoint",
        "verify --ledger-head": "pinned ledger head .* is not among the proof's entries 2 to 3",
        "witness": "status 409: the ledger was forked: its key signed two different trees of 3 entries",
        "monitor": "fork: .*signed two trees of 3 entries with different roots",
    },
    "an old checkpoint is replayed": {
        "verify --ledger-head": "pinned ledger head .* is not among the proof's entries 2 to 2",
        "witness": "has cosigned a tree of 3 entries, but the checkpoint has only 2",
        "monitor": "rollback: the ledger .* has 2 entries, but had 3 before: an old checkpoint is served again",
    },
    "the key is replaced": {
        "verify --key": "signed by .*, but not by the trusted key",
        "verify --policy": "signed by .*, but not by the trusted key",
        "witness": "status 403: the note is signed by .*, but not by the trusted key",
        "monitor": "signature: .*signed by .*, but not by the trusted key",
    },
    "an anchor is backdated": {
        "monitor": "time: entry 4 is backdated: it has the time .*, but was not yet published at",
    },
    "an old backup is restored and gets new entries": {
        "verify --policy": "too few witnesses signed the checkpoint",
        "verify --ledger-head": "pinned ledger head .* is not among the proof's entries 2 to 4",
        "witness": "status 422: the tree of 4 leaves does not begin with the tree of 3 leaves",
        "monitor": "fork: .*signed trees of 3 and 4 entries, of which the larger does not begin with the smaller",
    },
}
"""Who finds each attack, and the words. Who is not named does not find it."""


class History:
    """What a ledger says: batches with files, the entries that anchor them, and what the key signs over these."""

    def __init__(self, parts: Any, key: SigningKey, clock: VirtualClock) -> None:
        self.parts, self.key, self.clock = parts, key, clock
        self.signed = MemorySignedLedger(parts.ledger, key)

    def anchor(self, number: int, at: int, source: str = "JFK") -> None:
        """Anchor the messages 2·*number* and 2·*number* + 1 of *source* at the time *at*."""
        self.clock.jump((at - self.clock.now()) / MICROSECONDS)
        self.parts.writer.add("weather", [make_batch([2 * number, 2 * number + 1], source)], config=CONFIG)
        self.parts.writer.cut(force=True)

    @property
    def entries(self) -> list[LedgerEntry]:
        return list(self.parts.ledger.entries())

    def proof(self, message: int, head: Head) -> bytes:
        """The proof of *message* that ends with *head*."""

        def prove_with_head(number: int) -> EntryProof:
            self.signed.checkpoint()
            return prove_entry(number, self.parts.ledger, self.signed, self.signed, cosigned=head)

        return prove("weather", message, **self._parts, prove_entry=prove_with_head)

    def chain_proof(self, message: int) -> bytes:
        """The proof of *message* with all entries up to the head."""
        return prove("weather", message, **self._parts)

    @property
    def _parts(self) -> dict[str, Any]:
        parts = self.parts
        return {"index": parts.index, "cas": parts.cas, "ledger": parts.ledger, "journal": parts.journal}


class Scene:
    """A ledger of three anchors that a witness has cosigned, a monitor has followed, and a reader knows the head of."""

    def __init__(
        self, folder: Path, make_parts: Callable[..., Any], url: str, witness: WitnessProcess, name: str
    ) -> None:
        self.folder, self._make_parts = folder, make_parts
        self.ledger = PublishedLedger(folder / "web" / "anchors", origin_of(name))
        self.key, self.clock = self.ledger.key, VirtualClock(START)
        self._witness = witness
        self.policy = folder / "policy"
        self.policy.write_text(
            f"log {self.key.verifier_key}\nwitness W {witness.key} {witness.url}\nquorum W\n", "utf-8"
        )
        self.trusted = parse_policy(self.policy.read_bytes())
        rules = MonitorRules(policy=self.trusted)
        self.monitor = LedgerMonitor(
            open_published(f"{url}/anchors"), MonitorStateFile(folder / "monitor.state"), rules, self.clock
        )
        self.heads: dict[int, Head] = {}
        self.honest = self.history("honest", 0)
        for number in (1, 2, 3):
            self.honest.anchor(number, START + number * HOUR)
            self.show(self.honest)
        self.known_head = self.honest.entries[-1].hash

    def history(self, name: str, size: int) -> History:
        """A history that begins with the first *size* entries of the honest one, made again with the same key."""
        clock = VirtualClock(START)
        made = History(self._make_parts(name, ledger=MemoryLedger(clock)), self.key, clock)
        for entry in self.honest.entries[:size] if size else ():
            made.anchor(entry.number, entry.time)
        assert made.entries == (self.honest.entries[:size] if size else [])
        return made

    def show(self, history: History) -> None:
        """What an honest operator does with a new entry: publish, have it cosigned; and the monitor looks."""
        self.publish(history)
        self.clock.jump((history.entries[-1].time - self.clock.now()) / MICROSECONDS)
        assert self.ask_witness(history) == ""
        assert self.ask_monitor() == []

    def publish(self, history: History, key: SigningKey | None = None) -> Head:
        """Publish *history* in place of what was there, signed with *key*; its checkpoint."""
        self.ledger.rewrite(history.entries)
        cosigned = self.heads[max(self.heads)].data if self.heads else None
        signed = self.ledger.publish(key, cosigned=cosigned)
        return Head(signed.data, signed.size)

    def ask_witness(self, history: History, key: SigningKey | None = None) -> str:
        """Why the witness refuses the checkpoint of *history*; empty where it cosigns, which is then published."""
        self.ledger.rewrite(history.entries)
        signed = self.ledger.signed(key)
        client = WitnessClient(self._witness.url, self._witness.key)
        try:
            answer = client.cosign(signed.data, self.ledger.tree.consistency_path)
        except WitnessRefusalError as error:
            return str(error)
        note = parse_note(signed.data)
        cosigned = encode_note(SignedNote(note.text, (*note.signatures, *answer.signatures)))
        self.heads[signed.size] = Head(cosigned, signed.size)
        return ""

    def ask_monitor(self, others: Mapping[str, bytes] = {}) -> list[str]:
        return [f"{finding.kind}: {finding.message}" for finding in self.monitor.look(others=others).findings]

    def verify(self, history: History, proof: bytes, *trust: str) -> str:
        """What a reader is told who verifies *proof* with the files of *history*; empty where the proof is fine."""
        path = self.folder / "proof.json"
        path.write_bytes(proof)
        done = run_command("verify", str(path), "--cas", str(history.parts.folder / "cas"), *trust)
        assert done.code in (0, 1), done
        return done.err


def origin_of(attack: str) -> str:
    return f"example.org/{attack.replace(' ', '-')}"


@pytest.fixture(scope="module")
def witness(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WitnessProcess]:
    folder = tmp_path_factory.mktemp("witness")
    keys = [PublishedLedger(folder, origin_of(attack)).key.verifier_key for attack in (*FOUND_BY, "nothing")]
    with WitnessProcess(folder, keys, "--rate", "1000") as running:
        yield running


class Attack(msgspec.Struct):
    """What came of an attack: the history that the victim is shown, the checkpoint in its proof, the message asked for.

    ``offered`` says whether it is offered to the witness, with ``key``.
    """

    history: History
    head: Head
    message: int
    offered: bool = True
    key: SigningKey | None = None


def rewrite_an_old_entry(scene: Scene) -> Attack:
    forged = scene.history("forged", 1)
    forged.anchor(2, START + 2 * HOUR, source="EWR")
    for number in (3, 4):
        forged.anchor(number, START + number * HOUR)
    return Attack(forged, scene.publish(forged), 4)


def truncate(scene: Scene) -> Attack:
    shorter = scene.history("shorter", 2)
    scene.publish(shorter)
    return Attack(shorter, scene.heads[2], 4)


def fork_for_one_client(scene: Scene) -> Attack:
    scene.honest.anchor(4, START + 4 * HOUR)
    scene.show(scene.honest)
    forged = scene.history("forged", 3)
    forged.anchor(4, START + 4 * HOUR, source="EWR")
    return Attack(forged, forged.signed.checkpoint(), 8, offered=False)


def sign_two_heads(scene: Scene) -> Attack:
    forged = scene.history("forged", 2)
    forged.anchor(3, START + 3 * HOUR, source="EWR")
    return Attack(forged, scene.publish(forged), 4)


def replay_an_old_checkpoint(scene: Scene) -> Attack:
    (scene.ledger.folder / "checkpoint").write_bytes(scene.heads[2].data)
    return Attack(scene.history("shorter", 2), scene.heads[2], 4)


def swap_the_key(scene: Scene) -> Attack:
    other = SigningKey(scene.key.name, bytes(range(32)))
    longer = scene.history("longer", 3)
    longer.anchor(4, START + 4 * HOUR)
    head = scene.publish(longer, other)
    longer.signed.key = other
    return Attack(longer, head, 8, key=other)


def date_back(scene: Scene) -> Attack:
    """A day passes in which the monitor looks; then an entry appears that says it was made at its beginning."""
    scene.clock.jump(24 * 3600)
    assert scene.ask_monitor() == []
    longer = scene.history("longer", 3)
    longer.anchor(4, START + 4 * HOUR)
    scene.clock.jump(3600)
    scene.publish(longer)
    assert scene.ask_witness(longer) == ""
    return Attack(longer, scene.heads[4], 8)


def restore_a_backup(scene: Scene) -> Attack:
    restored = scene.history("restored", 2)
    for number in (5, 6):
        restored.anchor(number, START + number * HOUR)
    return Attack(restored, scene.publish(restored), 4)


ATTACKS: Mapping[str, Callable[[Scene], Attack]] = {
    "an old entry is rewritten": rewrite_an_old_entry,
    "the ledger is truncated": truncate,
    "one client gets a fork of the ledger": fork_for_one_client,
    "two different heads of the same size are signed": sign_two_heads,
    "an old checkpoint is replayed": replay_an_old_checkpoint,
    "the key is replaced": swap_the_key,
    "an anchor is backdated": date_back,
    "an old backup is restored and gets new entries": restore_a_backup,
}


@pytest.mark.parametrize("name", FOUND_BY)
def test_the_attack_is_found_by_whom_the_table_names_and_by_nobody_else(
    name: str, tmp_path: Path, make_parts: Callable[..., Any], witness: WitnessProcess
) -> None:
    (tmp_path / "web").mkdir()
    with served(tmp_path / "web") as url:
        scene = Scene(tmp_path, make_parts, url, witness, name)
        attack = ATTACKS[name](scene)
        history, message = attack.history, attack.message
        proof = history.proof(message, attack.head)
        said = {
            "verify --key": scene.verify(history, proof, "--key", str(scene.key.verifier_key)),
            "verify --policy": scene.verify(history, proof, "--policy", str(scene.policy)),
            "verify --ledger-head": scene.verify(history, history.chain_proof(4), "--ledger-head", scene.known_head),
            "monitor": "\n".join(scene.ask_monitor()),
            "monitor --compare": "\n".join(scene.ask_monitor({"the proof": attack.head.data})),
            "witness": scene.ask_witness(history, attack.key) if attack.offered else "",
        }
    expected = FOUND_BY[name]
    if "monitor" in expected:
        del said["monitor --compare"]  # which says the same
    found = {who: words for who, words in said.items() if words}
    assert set(found) == set(expected), found
    for who, words in expected.items():
        assert re.search(words, found[who]), (who, found[who])


def test_nothing_is_found_where_nothing_is_wrong(
    tmp_path: Path, make_parts: Callable[..., Any], witness: WitnessProcess
) -> None:
    (tmp_path / "web").mkdir()
    with served(tmp_path / "web") as url:
        scene = Scene(tmp_path, make_parts, url, witness, "nothing")
        scene.honest.anchor(4, START + 4 * HOUR)
        scene.show(scene.honest)
        proof = scene.honest.proof(8, scene.heads[4])
        assert check_checkpoint(scene.heads[4].data, scene.trusted).witnesses == ("W",)
        for trust in (("--key", str(scene.key.verifier_key)), ("--policy", str(scene.policy))):
            assert scene.verify(scene.honest, proof, *trust) == ""
        assert scene.verify(scene.honest, scene.honest.chain_proof(2), "--ledger-head", scene.known_head) == ""


def test_the_page_on_trust_has_the_same_table() -> None:
    rows = re.findall(r"^\| ([a-z ]+) \| (`.*`) \|$", TRUST_PAGE.read_text("utf-8"), re.MULTILINE)
    assert {attack: set(re.findall("`([^`]+)`", finders)) for attack, finders in rows} == {
        attack: set(found) for attack, found in FOUND_BY.items()
    }
