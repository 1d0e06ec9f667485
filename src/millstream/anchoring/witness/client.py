"""Asking a witness for its cosignature of a checkpoint (c2sp.org/tlog-witness)."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

import msgspec

from millstream.anchoring.errors import HttpError, NoteError, WitnessRefusalError
from millstream.anchoring.http_reader import HttpReader, check_url, redacted_url
from millstream.anchoring.transparency.checkpoint import MAX_TREE_SIZE, parse_checkpoint
from millstream.anchoring.transparency.signed_note import (
    NoteSignature,
    SignedNote,
    VerifierKey,
    parse_note,
    verify_note,
)
from millstream.anchoring.witness.requests import SIZE_MEDIA, AddCheckpoint, encode_request
from millstream.core.printable import MAX_SHOWN, printable

_MAX_ANSWER_BYTES = 64 << 10
_MAX_ROUNDS = 3
_SIZE = re.compile(rb"(0|[1-9][0-9]{0,18})\n?")

ConsistencyPath = Callable[[int, int], Sequence[bytes]]
"""The consistency path from the first of two sizes of the ledger's tree to the second."""


class Cosigned(msgspec.Struct, frozen=True):
    """The newest cosignature of a witness's key on a checkpoint, and the ``time`` that it states (seconds, UTC)."""

    signatures: tuple[NoteSignature]
    time: int


class WitnessClient:
    """Asks the witness of *key* at the submission prefix *url*. Thread-safe but for :attr:`known_size`.

    Raises :class:`~millstream.anchoring.http_reader.UrlError` for what is not an ``http`` or ``https`` URL.
    """

    def __init__(self, url: str, key: VerifierKey, reader: HttpReader | None = None) -> None:
        check_url(url)
        self._url = f"{url.rstrip('/')}/add-checkpoint"
        self._key = key
        self._reader = reader or HttpReader()
        self.known_size = 0
        """The size of the ledger's tree that the witness cosigned last, as far as this object knows."""

    def cosign(self, checkpoint: bytes, path: ConsistencyPath) -> Cosigned:
        """The cosignature of *checkpoint* (a signed note). The witness is told how its own tree leads to this one.

        Raises :class:`WitnessRefusalError` where the witness refuses it (its ``known_size`` is the size of a larger
        tree that it cosigned), :class:`HttpError` where it does not answer, or not as a witness does.
        """
        note = parse_note(checkpoint)
        size = parse_checkpoint(note).size
        old = min(self.known_size, size)  # one that once told of a larger tree is asked whether that still holds
        for _ in range(_MAX_ROUNDS):
            request = AddCheckpoint(old, tuple(path(old, size)) if 0 < old < size else (), checkpoint)
            status, media, body = self._ask(encode_request(request))
            if status == 200:
                cosigned = self._verified(note, body)
                self.known_size = size
                return cosigned
            if status != 409 or media != SIZE_MEDIA:
                raise self._refusal(status, body)
            self.known_size = self._parse_size(body)
            if self.known_size > size:
                break
            if self.known_size == old:
                raise HttpError(
                    redacted_url(self._url),
                    f"the witness refuses {old:,} as the size of the tree that it cosigned last, but reports the "
                    "same size: tell the operator of the witness",
                )
            old = self.known_size
        raise WitnessRefusalError(
            f"the witness {self._key.name} has cosigned a tree of {self.known_size:,} entries, but the checkpoint has "
            f"only {size:,}: the node was restored from an older backup, or another node signs with the same key; "
            "restore the newest state, or stop the other node",
            known_size=self.known_size,
        )

    def _ask(self, body: bytes) -> tuple[int, str, bytes]:
        with self._reader.post(self._url, body, {"Content-Type": "text/plain; charset=utf-8"}) as answer:
            media = answer.headers.get("content-type", "").partition(";")[0].strip().lower()
            return answer.status, media, answer.read(_MAX_ANSWER_BYTES)

    def _parse_size(self, body: bytes) -> int:
        found = _SIZE.fullmatch(body)
        if found is None or int(found[1]) > MAX_TREE_SIZE:
            raise HttpError(
                redacted_url(self._url),
                "the witness answered with status 409, but not with the size of the tree that it cosigned last: check "
                "the URL of the witness",
            )
        return int(found[1])

    def _verified(self, note: SignedNote, body: bytes) -> Cosigned:
        """The newest signature in *body* that the witness's key made on *note*; others are ignored."""
        try:
            answered = parse_note(f"{note.text}\n".encode() + body)
            if answered.text != note.text:
                raise NoteError("it signed another text than the checkpoint")
            verified = verify_note(answered, [self._key])
        except NoteError as error:
            text = f"the answer is not a cosignature of the witness: {error}"
            raise HttpError(redacted_url(self._url), text) from error
        own = [each for each in answered.signatures if (each.name, each.key_id) == (self._key.name, self._key.key_id)]
        newest, time = max(zip(own, (each.time or 0 for each in verified), strict=True), key=lambda pair: pair[1])
        return Cosigned((newest,), time)

    def _refusal(self, status: int, body: bytes) -> HttpError | WitnessRefusalError:
        reason = printable(body.decode("utf-8", "replace").strip(), MAX_SHOWN) or "(no reason given)"
        if status in (429, 500, 502, 503, 504):
            return HttpError(redacted_url(self._url), f"the witness answered with status {status}: {reason}")
        return WitnessRefusalError(
            f"the witness {self._key.name} refuses the checkpoint with status {status}: {reason}",
            is_fork=status in (409, 422),
        )
