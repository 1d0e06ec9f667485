"""Time stamps that outlive the certificates and digests of their authorities, because later ones renew them."""

from __future__ import annotations

import base64
import hashlib
import json
import re
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest

from millstream.anchoring import LocalCas, ProofError, verify_proof
from millstream.anchoring.errors import TimestampError
from millstream.anchoring.proof import StampedProof, Trust, decode_proof, encode_proof
from millstream.anchoring.timestamps import TimestampClient, parse_authorities
from millstream.anchoring.timestamps.entry_timestamp import CheckedTimestamp, TimestampRenewal
from millstream.anchoring.timestamps.renewal import RenewalDocument, parse_renewal, timestamp_leaf
from millstream.core.cid import cid_of
from millstream.core.clock import MICROSECONDS, SystemClock
from millstream.testing.ledgers import some_anchor
from support.stamped_node import StampedNode
from support.timestamp_authority import TimestampAuthority, TimestampRoot

DAY = 86_400 * MICROSECONDS
PAGE = Path(__file__).parents[3] / "docs" / "how-to" / "timestamps.md"


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> TimestampRoot:
    return TimestampRoot(tmp_path_factory.mktemp("authorities"))


@pytest.fixture
def short(root: TimestampRoot, tmp_path: Path) -> Iterator[TimestampAuthority]:
    """An authority whose certificate ends in 30 days."""
    with TimestampAuthority(root, f"Short TSA {tmp_path.name}", end=_in_days(30)) as running:
        yield running


@pytest.fixture
def node(short: TimestampAuthority, tmp_path: Path) -> StampedNode:
    return StampedNode(tmp_path / "node", [short])


@pytest.fixture
def trust(root: TimestampRoot) -> Trust:
    return Trust(authorities=parse_authorities(root.path.read_bytes()))


def test_a_time_stamp_is_renewed_before_its_certificate_ends(
    node: StampedNode, short: TimestampAuthority, trust: Trust
) -> None:
    node.anchor()
    code, answer = node.stamp()
    assert (code, [each["renews"] for each in answer["new"]]) == (1, [None])
    assert "cannot renew 1 time stamp: the certificate of this authority expires at" in answer["problems"][short.url]
    assert _issue(node) == "1 time stamp of the ledger anchors not renewed, the first ends in 29 days"
    before = node.prove(1)
    short.renew_certificate(end=_in_days(400))
    code, answer = node.stamp()
    assert (code, [each["renews"] for each in answer["new"]], _issue(node)) == (0, [1], "")
    assert "renewal of 1 time stamp: not later than" in node.command("anchor", "timestamps").out
    after = node.prove(1)
    at = [_checked(node, proof, trust, days) for proof in (before, after) for days in (1, 29)]
    assert [(each.status, each.renewals) for each in at] == [
        ("trusted", 0),
        ("trusted", 0),
        ("trusted", 1),
        ("trusted", 1),
    ]
    assert at[0].time == at[2].time, "the time is that of the first one"
    with pytest.raises(ProofError, match=r"Short TSA .* ended at .*, and no later time stamp renews it"):
        _checked(node, before, trust, 31)
    assert _checked(node, after, trust, 31).status == "trusted"
    with pytest.raises(ProofError, match="no later time stamp renews it"):
        _checked(node, after, trust, 401)


def test_renewals_are_renewed(node: StampedNode, short: TimestampAuthority, trust: Trust) -> None:
    node.anchor()
    for days in (30, 60, 80, 1000):
        short.renew_certificate(end=_in_days(days))
        node.stamp()
    proof = node.prove(1)
    chain = json.loads(proof)["timestamps"][0]["renewals"]
    assert [parse_renewal(each["document"].encode()).count for each in chain] == [3], "as few as possible"
    assert _checked(node, proof, trust, 999).status == "trusted"
    code, answer = node.stamp()
    assert (code, answer["new"]) == (0, [])


def test_a_chain_of_two_renewals_holds(
    node: StampedNode, short: TimestampAuthority, root: TimestampRoot, trust: Trust
) -> None:
    """The second could not cover the first stamp itself: its own time is after that has ended."""
    node.anchor()
    node.stamp()
    short.renew_certificate(end=_in_days(60))
    node.stamp()
    proof = _stamped(node.prove(1))
    stamp = proof.timestamps[0]
    (first,) = stamp.renewals
    leaf = timestamp_leaf("sha512", first.document.encode(), base64.b64decode(first.token))
    with TimestampAuthority(root, f"Long TSA {node.data.parent.name}") as long:
        second = _renewal(RenewalDocument("sha512", 1, leaf), long)
    longer = _changed(proof, renewals=(first, second))
    found = _checked(node, longer, trust, 3650)
    assert (found.renewals, found.time) == (2, _checked(node, node.prove(1), trust, 1).time)
    with pytest.raises(ProofError, match="does not cover the time stamp"):
        _checked(node, _changed(proof, renewals=(second,)), trust, 1)


def test_a_renewal_after_the_end_comes_too_late(
    node: StampedNode, short: TimestampAuthority, root: TimestampRoot, trust: Trust
) -> None:
    """By its accuracy, the token may be from any time within 40 days."""
    node.anchor()
    node.stamp()
    proof = _stamped(node.prove(1))
    stamp = proof.timestamps[0]
    leaf = timestamp_leaf("sha256", stamp.checkpoint.encode(), base64.b64decode(stamp.token))
    with TimestampAuthority(root, f"Late TSA {node.data.parent.name}", accuracy=f"secs:{40 * 86_400}") as late:
        renewal = _renewal(RenewalDocument("sha256", 1, leaf), late)
    changed = _changed(proof, renewals=(renewal,))
    assert _checked(node, changed, trust, 29).renewals == 0, "it still holds by itself"
    with pytest.raises(ProofError, match=r"ended at .*, and its time stamp was renewed only later, at "):
        _checked(node, changed, trust, 31)


def test_a_renewal_by_an_authority_that_is_not_trusted_does_not_prolong(
    node: StampedNode, trust: Trust, tmp_path: Path
) -> None:
    node.anchor()
    node.stamp()
    other = TimestampRoot(tmp_path / "other", "Other Root")
    with TimestampAuthority(other, "Other TSA") as stranger:
        both = StampedNode(node.data, [stranger])
        code, answer = both.stamp()
    assert (code, [each["renews"] for each in answer["new"]]) == (0, [None, 2])
    proof = _changed(_stamped(both.prove(1)))
    assert [each.status for each in _verified(both, proof, trust, 29)] == ["trusted", "untrusted"]
    with pytest.raises(ProofError, match=r"ended at .*, and the token of CN=Other TSA is not valid"):
        _checked(both, proof, trust, 31)


def test_a_retired_digest_is_renewed_with_another_one(
    root: TimestampRoot, short: TimestampAuthority, tmp_path: Path, trust: Trust
) -> None:
    short.renew_certificate()
    node = StampedNode(tmp_path / "node", [short])
    node.anchor()
    assert node.stamp()[0] == 0
    retired = ["timestamp_digest = 'sha512'", "timestamp_retired_digests = ['sha256']"]
    node = StampedNode(tmp_path / "node", [short], *retired)
    code, answer = node.stamp()
    assert (code, [(each["renews"], each["digest"]) for each in answer["new"]]) == (0, [(1, "sha512")])
    assert node.stamp()[1]["new"] == []
    proof = node.prove(1)
    (renewal,) = json.loads(proof)["timestamps"][0]["renewals"]
    assert renewal["document"].startswith("timestamp-renewal/v1\nsha512\n1\n")
    assert _checked(node, proof, trust, 1).renewals == 1
    wrong = StampedNode(tmp_path / "wrong", [short], "timestamp_retired_digests = ['sha256']")
    assert "which is also in timestamp_retired_digests" in wrong.command("anchor", "timestamps").err


def test_the_tree_of_a_renewal_is_that_of_the_page(node: StampedNode, short: TimestampAuthority) -> None:
    """Computed by hand from the files that `anchor timestamps` names."""
    for _ in range(3):
        node.anchor()
        node.stamp()
    short.renew_certificate(end=_in_days(400))
    node.stamp()
    *stamps, renewal = node.timestamps()["timestamps"]
    cas = node.data / "cas"

    def sha(data: bytes) -> bytes:
        return hashlib.sha256(data).digest()

    one, two, three = (
        sha(b"\0" + sha((cas / each["document"]).read_bytes()) + sha((cas / each["token"]).read_bytes()))
        for each in sorted(stamps, key=lambda stamp: str(stamp["token"]))
    )
    document = parse_renewal((cas / renewal["document"]).read_bytes())
    assert (document.count, document.root) == (3, sha(b"\1" + sha(b"\1" + one + two) + three))


def test_time_stamps_are_found_again_after_the_database_was_lost(
    node: StampedNode, short: TimestampAuthority, root: TimestampRoot, trust: Trust
) -> None:
    ids = []
    with TimestampAuthority(root, f"Second TSA {node.data.parent.name}", end=_in_days(20)) as second:
        both = StampedNode(node.data, [short, second], "timestamp_renewal = '0s'")
        for _ in range(3):
            ids.append(both.anchor())
            both.stamp()
        with both.open() as opened:  # a ledger of its own, whose time stamps are in the same storage
            opened.registry.ledger.append(some_anchor(1))
        both.stamp("--ledger", "registry")
        short.renew_certificate(end=_in_days(400))
        assert StampedNode(node.data, [short]).stamp()[1]["new"][0]["renews"] == 6
    before, proof = node.timestamps()["timestamps"], node.prove(1)
    refused = node.command("anchor", "timestamps", "--find")
    assert (refused.code, "already lists time stamps of the ledger anchors: omit --find" in refused.err) == (2, True)
    with closing(sqlite3.connect(node.data / "node.db")) as database, database:
        database.execute("DROP TABLE anchor_timestamps")
    (node.data / "cas" / cid_of(b"damaged")).write_bytes(b"other")
    assert node.command("anchor", "timestamps", "--find").code == 0
    after = node.timestamps()["timestamps"]

    def known(records: list[dict[str, Any]]) -> set[tuple[object, ...]]:
        return {tuple(record[name] for name in ("size", "renews", "document", "token", "time")) for record in records}

    assert known(after) == known(before) and len(before) == 7
    again = _verified(node, node.prove(1), trust, 390)  # two of the same second may change places
    assert set(map(repr, again)) == set(map(repr, _verified(node, proof, trust, 390))) and len(again) == 2
    assert node.command("anchor", "timestamps", "--find", "--ledger", "registry").out.count("1 entry") == 2


def test_time_stamps_are_found_again_although_the_node_was_started_first(node: StampedNode) -> None:
    node.anchor()
    node.stamp()
    with closing(sqlite3.connect(node.data / "node.db")) as database:
        database.execute("DROP TABLE anchor_timestamps")
    node.anchor()
    node.stamp()
    assert [each["size"] for each in node.timestamps()["timestamps"]] == [2]
    refused = node.command("anchor", "timestamps", "--find")
    assert (refused.code, "delete the rows of this ledger from the table anchor_timestamps" in refused.err) == (2, True)
    (statement,) = re.findall(r"```sql\n(.*?)```", PAGE.read_text("utf-8"), re.DOTALL)
    with closing(sqlite3.connect(node.data / "node.db")) as database, database:
        database.execute(statement)
    assert node.command("anchor", "timestamps", "--find").code == 0
    assert {each["size"] for each in node.timestamps()["timestamps"]} == {1, 2}


def test_a_lost_token_stops_no_new_time_stamp(node: StampedNode, short: TimestampAuthority) -> None:
    node.anchor()
    node.stamp()
    short.renew_certificate(end=_in_days(400))
    (node.data / "cas" / node.timestamps()["timestamps"][0]["token"]).unlink()
    node.anchor()
    assert [(each["size"], each["renews"]) for each in node.stamp()[1]["new"]] == [(2, None), (None, 2)]


@pytest.mark.parametrize(
    "text",
    [
        "",
        "timestamp-renewal/v2\nsha256\n1\n" + "A" * 43 + "=\n",
        "timestamp-renewal/v1\nmd5\n1\n" + "A" * 43 + "=\n",
        "timestamp-renewal/v1\nsha256\n0\n" + "A" * 43 + "=\n",
        "timestamp-renewal/v1\nsha256\n01\n" + "A" * 43 + "=\n",
        "timestamp-renewal/v1\nsha512\n1\n" + "A" * 43 + "=\n",
        "timestamp-renewal/v1\nsha256\n1\n" + "A" * 43 + "\n",
        "timestamp-renewal/v1\nsha256\n1\n" + "A" * 43 + "=",
        "timestamp-renewal/v1\nsha256\n1\n" + "A" * 43 + "=\nmore\n",
    ],
)
def test_a_text_that_is_not_a_renewal_is_refused(text: str) -> None:
    with pytest.raises(TimestampError):
        parse_renewal(text.encode())


def test_a_renewal_is_read_back_as_it_was_written() -> None:
    document = RenewalDocument("sha512", 366, bytes(64))
    assert parse_renewal(document.encode()) == document
    with pytest.raises(TimestampError, match="does not have the 64 bytes of sha512"):
        document.require(0, bytes(64), [bytes(32)] * 9)
    with pytest.raises(TimestampError, match="has 1 hashes, but needs 9"):
        document.require(0, bytes(64), [bytes(64)])


def _in_days(days: int) -> datetime:
    return datetime.now(UTC) + timedelta(days=days)


def _verified(node: StampedNode, proof: bytes, trust: Trust, days: int) -> tuple[CheckedTimestamp, ...]:
    """The time stamps of *proof*, verified so many *days* from now."""
    later = msgspec.structs.replace(trust, now=SystemClock().now() + days * DAY)
    return verify_proof(proof, LocalCas(node.data / "cas"), later).timestamps


def _checked(node: StampedNode, proof: bytes, trust: Trust, days: int) -> CheckedTimestamp:
    return _verified(node, proof, trust, days)[0]


def _stamped(proof: bytes) -> StampedProof:
    found = decode_proof(proof)
    assert isinstance(found, StampedProof)
    return found


def _changed(proof: StampedProof, **changes: Any) -> bytes:
    """*proof* with *changes* of its first time stamp."""
    first, *others = proof.timestamps
    stamps = (msgspec.structs.replace(first, **changes), *others)
    members = msgspec.to_builtins(msgspec.structs.replace(proof, timestamps=stamps))
    del members["digest"]
    return encode_proof(members)


def _renewal(document: RenewalDocument, authority: TimestampAuthority) -> TimestampRenewal:
    """A renewal of the only leaf of *document* by *authority*."""
    token = TimestampClient(authority.url).stamp(document.encode(), "sha256").data
    return TimestampRenewal(document.encode().decode(), 0, (), base64.b64encode(token).decode())


def _issue(node: StampedNode) -> str:
    issues = json.loads(node.command("status", "--json").out.splitlines()[-1])["issues"]
    return next((str(issue["what"]) for issue in issues if issue["kind"] == "timestamps-ending"), "")
