"""What an audit of anchors finds, computed from the ledger and the files of a CAS alone.

The rules are those of docs/formats/ledger.md and records.md; nothing here imports Millstream.
"""

from __future__ import annotations

import hashlib
import json
from base64 import b32encode
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from support.recompute_batches import merkle_root


class Fact(NamedTuple):
    """A row of an audit: of an anchor (:attr:`ordinal` -1, :attr:`batch` its manifest), or of a batch in it."""

    number: int
    ordinal: int
    log: str
    batch: str
    ids: tuple[int, ...]
    rejects: int
    files: int
    bytes: int


class Anchors(NamedTuple):
    """The facts of whole anchors, the batches and rejects in them, and the number and file of each damaged one."""

    facts: list[Fact]
    headers: list[dict[str, Any]]
    rejects: list[tuple[str, int, str]]
    damaged: list[tuple[int, str]]


class _DamagedFileError(Exception):
    """A file is missing, or its bytes do not hash to its name."""


def audited(entries: Sequence[dict[str, Any]], cas: Path) -> Anchors:
    """Follow the ledger *entries* and read every file that they name below *cas*; fails where a rule is broken."""
    result = Anchors([], [], [], [])
    previous = "0" * 64
    for number, entry in enumerate(entries, 1):
        sealed = {name: value for name, value in entry.items() if name != "hash"}
        assert (entry["number"], entry["previous"]) == (number, previous)
        assert hashlib.sha256(_canonical(sealed)).hexdigest() == entry["hash"]
        previous = entry["hash"]
        count, _, cid = entry["anchor_string"].partition(".")
        try:
            facts, headers, rejects = _anchor(number, int(count), cid, cas)
        except _DamagedFileError as damaged:
            result.damaged.append((number, str(damaged)))
            continue
        result.facts.extend(facts)
        result.headers.extend(headers)
        result.rejects.extend(rejects)
    members = [(fact.log, one) for fact in result.facts for one in fact.ids]
    assert len(members) == len(set(members))
    return result


def _anchor(
    number: int, count: int, cid: str, cas: Path
) -> tuple[list[Fact], list[dict[str, Any]], list[tuple[str, int, str]]]:
    data = _file(cas, cid)
    manifest = json.loads(data)
    log = manifest["log"]
    assert (_canonical(manifest), manifest["protocol"], manifest["count"]) == (data, "records/1", count)
    read, files = len(data), 1
    headers: list[dict[str, Any]] = []
    leaves: list[bytes] = []
    facts: list[Fact] = []
    for listed in manifest["files"]:
        data = _file(cas, listed["uri"])
        read, files = read + len(data), files + 1
        found = list(_batches(data))
        messages = sum(len(ids) for _, _, ids in found)
        assert (listed["batches"], listed["bytes"], listed["messages"]) == (len(found), len(data), messages)
        for header, leaf, ids in found:
            facts.append(Fact(number, len(facts), log, header["batch"], ids, 0, 0, 0))
            headers.append(header | {"log": log, "ids": ids})
            leaves.append(leaf)
    places = [(header["start"], header["source"].encode(), header["batch"]) for header in headers]
    assert places == sorted(places)
    assert (merkle_root(leaves), len(headers)) == (manifest["root"], count)
    assert manifest["messages"] == sum(len(fact.ids) for fact in facts)
    rejects: list[tuple[str, int, str]] = []
    for listed in manifest["rejects"]["files"]:
        data = _file(cas, listed["uri"])
        read, files = read + len(data), files + 1
        lines = [json.loads(line) for line in data.splitlines()]
        assert (listed["bytes"], listed["count"]) == (len(data), len(lines))
        rejects += [(log, line["rejected"], line["reason"]) for line in lines]
    rejected = [one for _, one, _ in rejects]
    assert rejected == sorted(set(rejected))
    assert manifest["rejects"]["count"] == len(rejects)
    return [Fact(number, -1, log, cid, (), len(rejects), files, read), *facts], headers, rejects


def _batches(data: bytes) -> Iterator[tuple[dict[str, Any], bytes, tuple[int, ...]]]:
    lines = iter(data.split(b"\n")[:-1])
    for leaf in lines:
        header = json.loads(leaf)
        messages = [next(lines) for _ in range(header["count"])]
        assert merkle_root(messages) == header["root"]
        assert _canonical(header) == leaf
        decoded = [json.loads(line) for line in messages]
        assert [_canonical(message) for message in decoded] == messages
        assert {message["source"] for message in decoded} == {header["source"]}
        times = [message["event_time"] for message in decoded]
        assert (times[0], times[-1], times) == (header["start"], header["end"], sorted(times))
        yield header, leaf, tuple(message["id"] for message in decoded)


def _file(cas: Path, cid: str) -> bytes:
    try:
        data = (cas / cid).read_bytes()
    except FileNotFoundError as error:
        raise _DamagedFileError(cid) from error
    if cid_of(data) != cid:
        raise _DamagedFileError(cid)
    return data


def cid_of(data: bytes) -> str:
    """The CID of *data*: version 1, raw, SHA-256, base32."""
    return "b" + b32encode(b"\x01\x55\x12\x20" + hashlib.sha256(data).digest()).decode().lower().rstrip("=")


def _canonical(value: object) -> bytes:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"), sort_keys=True).encode()
