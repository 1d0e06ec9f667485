"""Sidetree's reference implementation and ours, on the same ledger: what one writes the other reads, to the letter."""

from __future__ import annotations

import gzip
import json
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import pytest
from reference.histories import Histories, batches
from reference.hostile import changed, renamed
from reference.implementation import Files, ReferenceImplementation

from millstream.anchoring.errors import CasNotFoundError
from millstream.anchoring.sidetree import (
    SIDETREE,
    AnchoredOperation,
    BatchFileError,
    Operation,
    RequestError,
    parse_did,
    parse_request,
    read_batch,
    resolution,
    resolve,
    write_batch,
)
from millstream.anchoring.sidetree.encoding import canonical, encode
from millstream.anchoring.sidetree.javascript import stringify
from millstream.core.cid import CidError, cid_of, is_cid
from millstream.testing.dids import DidOwner
from suite.sizes import sized

BATCHES = sized(quick=20, ci=100, long=1000)
MOST = 10


class OurReader:
    """The anchored operations by identifier, read by our rules; ``faults`` are the batches that were not whole."""

    def __init__(self) -> None:
        self._found: dict[str, list[AnchoredOperation]] = defaultdict(list)
        self.faults: dict[int, str] = {}

    def read(self, number: int, files: Files) -> None:
        contents = {cid_of(data): data for data in files.contents}

        def fetch(uri: str, _limit: int) -> bytes:
            if uri not in contents:
                raise CasNotFoundError(f"{uri} names no file") if is_cid(uri) else CidError(f"{uri} is no CID")
            return contents[uri]

        try:
            batch = read_batch(files.anchor, fetch, SIDETREE, partial=True)
        except (BatchFileError, CasNotFoundError) as error:
            self.faults[number] = str(error)
            return
        if batch.fault or batch.unavailable:
            self.faults[number] = batch.fault or str(batch.unavailable)
        for index, operation in enumerate(batch.operations):
            self._found[operation.suffix].append(AnchoredOperation(number, index, operation))

    def resolve(self, dids: Iterable[str]) -> list[Any]:
        """Resolution results, as JSON that a client would read."""
        answers = list[Any]()
        for name in dids:
            did = parse_did(name, SIDETREE)
            answer = resolution(did, resolve(self._found[did.suffix]))
            answers.append(answer if answer is None else json.loads(stringify(answer)))
        return answers


def dids_of(histories: Histories) -> list[str]:
    """Short forms of all identifiers, and every fifth in its long form."""
    long_forms = list[str]()
    for suffix, request in list(zip(histories.suffixes, histories.creates, strict=True))[::5]:
        create = json.loads(request)
        state = encode(canonical({"suffixData": create["suffixData"], "delta": create["delta"]}))
        long_forms.append(f"did:sidetree:{suffix}:{state}")
    return [*(f"did:sidetree:{suffix}" for suffix in histories.suffixes), *long_forms]


def read_by_both(reference: ReferenceImplementation, written: Mapping[int, Files]) -> tuple[OurReader, list[bool]]:
    reference.forget()
    ours = OurReader()
    for number, files in written.items():
        ours.read(number, files)
    return ours, reference.read(written)


def written_by(reference: ReferenceImplementation, requests: Sequence[bytes]) -> Files | None:
    """A batch of those of *requests* that the reference takes; None where it takes none."""
    taken = dict[str, bytes]()
    for request, verdict in zip(requests, reference.take(requests), strict=True):
        if verdict == "ok":
            value = json.loads(request)
            taken.setdefault(value.get("didSuffix") or cid_of(canonical(value["suffixData"])), request)
    return reference.write(taken.values()) if taken else None


def assert_same(ours: Sequence[Any], theirs: Sequence[Any], dids: Sequence[str]) -> None:
    assert [did for did, mine, other in zip(dids, ours, theirs, strict=True) if mine != other] == []
    assert sum(answer is not None for answer in ours) > len(dids) / 2, "most identifiers resolve"


@pytest.mark.parametrize("seed", range(2))
def test_the_reference_reads_what_our_door_takes_and_our_writer_writes(
    reference: ReferenceImplementation, seed: int
) -> None:
    histories = Histories(seed, loose=False)
    written, refused = dict[int, Files](), 0
    for requests in batches(histories, BATCHES, MOST):
        operations = dict[str, Operation]()
        for request in requests:
            try:
                operation = parse_request(request, SIDETREE)
            except RequestError:
                refused += 1
                continue
            operations.setdefault(operation.suffix, operation)
        if operations:
            batch = write_batch(list(operations.values()), SIDETREE)
            written[len(written) + 1] = Files(batch.anchor, [file.data for file in batch.files])
    ours, done = read_by_both(reference, written)
    assert (ours.faults, all(done)) == ({}, True), "no batch is void on either side"
    assert refused < len(written), "nearly all is taken"
    dids = dids_of(histories)
    assert_same(ours.resolve(dids), reference.resolve(dids), dids)


@pytest.mark.parametrize("seed", range(2, 4))
def test_we_read_what_the_reference_takes_and_writes(reference: ReferenceImplementation, seed: int) -> None:
    histories = Histories(seed, loose=True)
    written = dict[int, Files]()
    for requests in batches(histories, BATCHES, MOST):
        files = written_by(reference, requests)
        if files is not None:
            written[len(written) + 1] = files
    ours, done = read_by_both(reference, written)
    assert (ours.faults, all(done)) == ({}, True), "no batch is void on either side"
    dids = dids_of(histories)
    assert_same(ours.resolve(dids), reference.resolve(dids), dids)


@pytest.mark.parametrize("seed", range(4, 8))
def test_hostile_files_are_judged_as_the_reference_judges_them(reference: ReferenceImplementation, seed: int) -> None:
    """The next batches are changed at random: those that both drop leave the same identifiers in the same state."""
    histories = Histories(seed, loose=True)
    written = dict[int, Files]()
    for requests in batches(histories, BATCHES, MOST):
        files = written_by(reference, requests)
        if files is not None:
            hostile = histories.random.random() < 0.7
            written[len(written) + 1] = changed(files, histories.random) if hostile else files
    ours, _ = read_by_both(reference, written)
    dids = [f"did:sidetree:{suffix}" for suffix in histories.suffixes]
    theirs = reference.resolve(dids)
    # An operation whose reveal value is not the hash of its key makes the reference fail for its identifier for ever.
    answered = [(did, other) for did, other in zip(dids, theirs, strict=True) if not (other and "error" in other)]
    mine = dict(zip(dids, ours.resolve(dids), strict=True))
    differing = [did for did, other in answered if mine[did] != other]
    assert differing == []
    assert len(answered) > len(dids) * 0.9


@pytest.mark.parametrize("missing", range(5))
def test_while_a_file_is_missing_what_counts_is_the_same(reference: ReferenceImplementation, missing: int) -> None:
    people = [DidOwner(f"missing{n}") for n in range(4)]
    first = write_batch([person.create for person in people[1:]], SIDETREE)
    second = write_batch([people[0].create, people[1].update(), people[2].recover(), people[3].deactivate()], SIDETREE)
    contents = [file.data for file in second.files]
    partial = Files(second.anchor, [*contents[:missing], *contents[missing + 1 :]])
    written = {1: Files(first.anchor, [file.data for file in first.files]), 2: partial}
    ours, done = read_by_both(reference, written)
    assert (list(ours.faults), done) == ([2], [True, False])
    dids = [f"did:sidetree:{person.suffix}" for person in people]
    assert ours.resolve(dids) == reference.resolve(dids)
    later, _ = read_by_both(reference, {**written, 2: Files(second.anchor, contents)})
    assert later.resolve(dids) == reference.resolve(dids)


@pytest.mark.parametrize("delta", [{"patches": [{"action": "replace", "document": None}]}, {"n": 1e21}])
def test_where_the_reference_throws_the_batch_keeps_what_needs_no_delta(
    reference: ReferenceImplementation, delta: dict[str, Any]
) -> None:
    """It reads such a batch again and again, and always finds the same: recoveries and deactivations alone."""
    people = [DidOwner(f"thrown{n}") for n in range(4)]
    first = write_batch([person.create for person in people[1:]], SIDETREE)
    second = write_batch([people[0].create, people[1].update(), people[2].recover(), people[3].deactivate()], SIDETREE)
    texts = {cid_of(file.data): gzip.decompress(file.data).decode() for file in second.files}
    (chunk,) = (name for name, text in texts.items() if "deltas" in text)
    bad = json.loads(texts[chunk])
    bad["deltas"][0] = {"updateCommitment": bad["deltas"][0]["updateCommitment"], **delta}
    texts[chunk] = json.dumps(bad)
    written = {
        1: Files(first.anchor, [file.data for file in first.files]),
        2: renamed(second.anchor, texts),
    }
    ours, done = read_by_both(reference, written)
    assert done == [True, False]
    dids = [f"did:sidetree:{person.suffix}" for person in people]
    answers = reference.resolve(dids)
    assert ours.resolve(dids) == answers
    assert [answer is not None for answer in answers] == [False, True, True, True]
    assert "service" in answers[1]["didDocument"], "the update is passed over"
    assert "service" not in answers[2]["didDocument"], "the recovery counts, and has an empty document"
    assert answers[3]["didDocumentMetadata"]["deactivated"]
