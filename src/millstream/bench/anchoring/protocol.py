"""The protocol by itself: one thread, no storage."""

from __future__ import annotations

import functools
from collections.abc import Sequence

from millstream.anchoring.sidetree import (
    SIDETREE,
    AnchoredOperation,
    Operation,
    apply,
    parse_request,
    read_batch,
    resolve,
    write_batch,
)
from millstream.anchoring.sidetree.operations import stored_operation
from millstream.anchoring.sidetree.signatures import clear_signature_cache, parse_jws
from millstream.bench.anchoring.timing import timed
from millstream.bench.runner import Comparison, Contender, Measurement
from millstream.core.canonical import canonical_json

REFERENCE = {
    "creates": "parse 31,300, write 21,400, process 1,570, apply 12,000",
    "signed updates": "parse 6,600, write 5,470, process 1,205, apply 608",
}
"""What the reference implementation, in TypeScript, gave in a run of its own on two cores with 10,000 operations."""


def by_the_protocol(what: str, operations: Sequence[Operation], before: Sequence[Sequence[Operation]]) -> Comparison:
    """*operations*, each of which follows the operations *before* it on its DID."""
    requests = [canonical_json(operation.request) for operation in operations]
    return Comparison(
        title=f"{len(operations):,} {what}, only the protocol",
        unit="operations/s",
        conditions="One thread does the work. Parsing checks all rules and the signature; reading checks the files "
        "of an anchor as a resolver does. The files are written from parsed operations, or, in the next row, from the "
        "bytes of requests, which are decoded but not checked again. To resolve an identifier, all its operations are "
        "applied. The reference implementation of Sidetree, in TypeScript, did these numbers of operations per second "
        f"in a separate run on two cores: {REFERENCE[what]}.",
        contenders=[
            Contender("parse", functools.partial(_parse, requests)),
            Contender("write the files of a batch", functools.partial(_write, operations)),
            Contender("write the files from requests, as the batch writer does", functools.partial(_rewrite, requests)),
            Contender("read the files back (process)", functools.partial(_read, operations)),
            Contender("resolve the identifiers", functools.partial(_resolve, operations, before)),
            Contender("apply the last operation", functools.partial(_apply, operations, before)),
        ],
    )


def signatures(updates: Sequence[Operation]) -> Comparison:
    """The ES256K signatures of *updates*, each of a key of its own."""
    return Comparison(
        title="ES256K signatures",
        unit="signatures/s",
        conditions="One thread verifies the signatures. Each signature has a key of its own, which is decoded and "
        "checked to be a point of the curve. The Python package coincurve calls libsecp256k1 to verify.",
        contenders=[Contender("decode the JWS and verify", functools.partial(_verify, updates))],
    )


def _parse(requests: Sequence[bytes]) -> Measurement:
    clear_signature_cache()
    return timed(len(requests), lambda: [parse_request(request, SIDETREE) for request in requests])


def _write(operations: Sequence[Operation]) -> Measurement:
    return timed(len(operations), lambda: write_batch(operations, SIDETREE))


def _rewrite(requests: Sequence[bytes]) -> Measurement:
    """Requests were checked when they were accepted, so the batch writer only takes them apart."""
    suffixes = [parse_request(request, SIDETREE).suffix for request in requests]

    def write() -> None:
        pairs = zip(requests, suffixes, strict=True)
        write_batch([stored_operation(data, suffix) for data, suffix in pairs], SIDETREE)

    return timed(len(requests), write)


def _read(operations: Sequence[Operation]) -> Measurement:
    written = write_batch(operations, SIDETREE)
    files = {file.uri: file.data for file in written.files}

    def read() -> None:
        batch = read_batch(written.anchor, lambda uri, _limit: files[uri], SIDETREE)
        assert batch.fault is None and len(batch.operations) == len(operations), "all operations are read back"

    return timed(len(operations), read)


def _resolve(operations: Sequence[Operation], before: Sequence[Sequence[Operation]]) -> Measurement:
    histories = [
        [AnchoredOperation(number, 0, each) for number, each in enumerate([*earlier, operation])]
        for earlier, operation in zip(before, operations, strict=True)
    ]

    def run() -> None:
        assert all(
            state is not None and state.number == len(history) - 1
            for history in histories
            for state in [resolve(history)]
        )

    return timed(len(operations), run)


def _apply(operations: Sequence[Operation], before: Sequence[Sequence[Operation]]) -> Measurement:
    states = [resolve([AnchoredOperation(n, 0, each) for n, each in enumerate(earlier)]) for earlier in before]
    last = [AnchoredOperation(len(earlier), 0, each) for earlier, each in zip(before, operations, strict=True)]

    def run() -> None:
        applied = [apply(state, operation) for state, operation in zip(states, last, strict=True)]
        assert all(state is not None for state in applied), "every operation is valid"

    return timed(len(operations), run)


def _verify(updates: Sequence[Operation]) -> Measurement:
    texts = [operation.signed.text for operation in updates if operation.signed is not None]
    clear_signature_cache()

    def run() -> None:
        for text in texts:
            signed = parse_jws(text, SIDETREE)
            assert signed.verifies_with(signed.payload["updateKey"]), "the signature is good"

    return timed(len(texts), run)
