"""What may differ between networks that speak Sidetree: limits, algorithms, and the form of proofs."""

from __future__ import annotations

from collections.abc import Set as AbstractSet

import msgspec

from millstream.core.cid import CidForm

ADD_KEYS, REMOVE_KEYS = "add-public-keys", "remove-public-keys"
ADD_SERVICES, REMOVE_SERVICES = "add-services", "remove-services"
ADD_NAMES, REMOVE_NAMES = "add-also-known-as", "remove-also-known-as"
REPLACE = "replace"
JSON_PATCH = "ietf-json-patch"
PATCH_ACTIONS = frozenset(
    {ADD_KEYS, REMOVE_KEYS, ADD_SERVICES, REMOVE_SERVICES, ADD_NAMES, REMOVE_NAMES, REPLACE, JSON_PATCH}
)

ALGORITHMS = frozenset({"ES256K", "EdDSA", "ES256"})
"""The signature algorithms that a network may allow."""


class Profile(msgspec.Struct, frozen=True):
    """The parameters of a network. Sizes in bytes; file limits count the compressed bytes.

    A file may have at most ``inflation`` times its limit once it is decompressed. ``header_members`` are the members
    that the header of a signature may have, ``extra_*`` the members that suffix data and signed payloads may have
    beside those of the specification. Where signed payloads may have ``anchorFrom`` and ``anchorUntil`` (seconds since
    the epoch), they are at most ``max_window_seconds`` apart, and so far apart where only the first is given. ``cid``
    is how the files of a batch are named when they are written; readers take any, ``hashlinks`` too where allowed.
    With ``reference`` the files of others are judged as the reference implementation judges them, to the letter. With
    ``all_or_nothing`` a batch whose provisional files are bad is dropped whole, with ``empty_patches`` a delta may
    change the keys alone.
    """

    name: str
    method: str = "sidetree"
    max_operations: int = 10_000
    max_operation_bytes: int = 10_000
    max_delta_bytes: int = 1_000
    max_uri_length: int = 100
    max_core_index_bytes: int = 1_000_000
    max_provisional_index_bytes: int = 1_000_000
    max_proof_bytes: int = 2_500_000
    max_chunk_bytes: int = 10_000_000
    inflation: int = 3
    max_writer_lock_bytes: int = 200
    algorithms: AbstractSet[str] = frozenset({"ES256K", "EdDSA"})
    header_members: AbstractSet[str] = frozenset({"alg"})
    key_nonce: bool = False
    patches: AbstractSet[str] = frozenset({ADD_KEYS, REMOVE_KEYS, ADD_SERVICES, REMOVE_SERVICES, REPLACE})
    bare_proofs: bool = False
    exact_count: bool = False
    hashlinks: bool = False
    ignore_unknown: bool = False
    extra_suffix_data: AbstractSet[str] = frozenset()
    extra_signed: AbstractSet[str] = frozenset()
    max_window_seconds: int = 600
    reference: bool = False
    all_or_nothing: bool = False
    empty_patches: bool = False
    cid: CidForm = CidForm.RAW


SIDETREE = Profile("sidetree", algorithms=frozenset({"ES256K"}), reference=True, empty_patches=True)
"""Sidetree v1.0 as its TypeScript reference implementation reads and writes it."""

ORB = Profile(
    "orb",
    method="orb",
    max_operation_bytes=2_500,
    max_delta_bytes=1_700,
    max_uri_length=500,
    algorithms=frozenset({"ES256K", "EdDSA", "ES256"}),
    header_members=frozenset({"alg", "kid"}),
    key_nonce=True,
    patches=frozenset({ADD_KEYS, REMOVE_KEYS, ADD_SERVICES, REMOVE_SERVICES, ADD_NAMES, REMOVE_NAMES}),
    bare_proofs=True,
    exact_count=True,
    all_or_nothing=True,
    hashlinks=True,
    ignore_unknown=True,
    extra_suffix_data=frozenset({"anchorOrigin"}),
    extra_signed=frozenset({"anchorOrigin", "anchorFrom", "anchorUntil", "revealValue"}),
)
"""Sidetree as Orb has it: bare signatures in proof files, optional key ids and nonces, larger deltas."""

PROFILES = {profile.name: profile for profile in (SIDETREE, ORB)}
