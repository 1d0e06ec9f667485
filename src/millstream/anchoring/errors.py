"""Every error of the anchoring package.

::

    AnchoringError
    ├── BatchFormatError      a batch, manifest or line breaks the rules of its format (InputError)
    ├── MerklePathError       a path does not fit its tree (InputError)
    ├── JournalBusyError      another process is cutting batches (BusyError)
    ├── CasError              content-addressed storage
    │   ├── CasNotFoundError    no such file (NotFoundError)
    │   ├── CasDamagedError     the bytes do not hash to their name
    │   ├── CasTooLargeError    more bytes than the reader allows
    │   ├── CasOverlongError    an answer with more bytes than allowed, which was not read to its end
    │   └── CasUnavailableError the storage did not answer (transient)
    ├── LedgerError           the ledger is not an unbroken chain
    │   ├── LedgerReplacedError the ledger is not the one that was observed, or lost entries of it
    │   ├── LedgerFormatError   what was read is not a ledger (InputError)
    │   ├── LedgerUnavailableError  the ledger could not be read (transient)
    │   └── PublishedFileError    a published file of the ledger is missing or damaged
    │       └── EntriesMismatchError  the published entries are not those of the signed tree
    ├── HttpError             a server did not answer as it should (transient)
    ├── ObservationBlockedError  an anchor cannot be read until a file is restored
    │   └── ObservationDelayedError  … until the storage answers (transient)
    ├── NotAnchoredError      no proof exists for this message (NotFoundError)
    │   └── NotBatchedError     no batch with it is known here
    ├── ProofError            the proof does not hold
    └── TransparencyError     signatures of ledgers and what they sign
        ├── NoteError           not a signed note or a key, or a signature that does not hold (InputError)
        │   ├── CheckpointError   the note is not a checkpoint
        │   └── UnknownSignerError  no known key has signed the note
        ├── TrustPolicyError    the policy says not whom to trust (InputError)
        ├── LedgerKeyError      the key of a ledger cannot be used (InputError)
        ├── NotCosignedError      the quorum of witnesses has signed no checkpoint yet (NotFoundError)
        ├── MonitorStateError     a monitor cannot use what it remembers of a ledger
        ├── MonitorBusyError      another monitor uses the same state (BusyError)
        ├── WitnessRefusalError   a witness refuses to cosign a checkpoint
        ├── TimestampError        not a time stamp, or one that does not hold (InputError)
        └── TimestampRefusalError a time-stamping authority refuses a request
"""

from __future__ import annotations

from typing import ClassVar

from millstream.core.errors import BusyError, InputError, MillstreamError, NotFoundError

NODE_DATABASE = "the node's database (node.db, or the server in node.database)"
"""Where the tables of a node are, for errors."""

NODE_LOGS = "the node's logs (log.db, or the storage in log.store)"
"""Where its logs are."""

INDEX_AHEAD = "but the index of anchored messages in the node's database refers to it"
"""Why an entry that a ledger does not have was looked for, for errors."""

RESTORE_LEDGER = (
    f"Restore the newest state of {NODE_LOGS}. If entries of the ledger are lost, stop the node's processes, run "
    "`millstream anchor observe --rebuild`, and start a ledger with a new key (docs/formats/ledger-tree.md)"
)
"""What to do if a ledger is not the one that was observed."""

RESTORE_DATABASE = f"Restore {NODE_DATABASE} from a backup"
"""What to do if these tables are damaged."""


class AnchoringError(MillstreamError):
    """The anchoring package could not do what was asked."""


class BatchFormatError(AnchoringError, InputError):
    """The bytes break the rules of the records format (docs/formats/records.md)."""


class MerklePathError(AnchoringError, InputError):
    """The path does not fit a tree of this size."""


class JournalBusyError(AnchoringError, BusyError):
    """Another process is cutting batches from the same journal; try again when it has finished."""


class CasError(AnchoringError):
    """The content-addressed storage could not do what was asked."""


class CasNotFoundError(CasError, NotFoundError):
    """There is no file of this CID."""


class CasDamagedError(CasError):
    """The bytes of the file do not hash to its CID."""


class CasTooLargeError(CasError):
    """The file is whole, but has more bytes than its reader allows."""


class CasOverlongError(CasError):
    """The answer has more bytes than the reader allows. It was not read to its end, so it may be a wrong one."""


class CasUnavailableError(CasError):
    """The content-addressed storage did not answer; the same call may succeed later."""

    transient: ClassVar[bool] = True


class LedgerError(AnchoringError):
    """The ledger is not an unbroken chain of entries."""


class LedgerReplacedError(LedgerError):
    """The ledger does not continue the entries that were observed: it was replaced, or lost some of them."""


class LedgerFormatError(LedgerError, InputError):
    """The data is not a ledger: it contains something other than entries."""


class LedgerUnavailableError(LedgerError):
    """The ledger could not be read now; the same call may succeed later."""

    transient: ClassVar[bool] = True


class PublishedFileError(LedgerError):
    """A published file of a ledger is missing, or does not belong to its checkpoint."""


class EntriesMismatchError(PublishedFileError):
    """The published entries of a ledger do not hash to the root of its checkpoint."""


class HttpError(AnchoringError):
    """A server did not answer, not in time, or not with what was asked for; the same call may succeed later.

    ``reason`` is the same without the address.
    """

    transient: ClassVar[bool] = True

    def __init__(self, address: str, reason: str) -> None:
        super().__init__(f"{address}: {reason}")
        self.reason = reason


class ObservationBlockedError(AnchoringError):
    """An anchor cannot be read until the file it names is back in content-addressed storage."""


class ObservationDelayedError(ObservationBlockedError):
    """An anchor cannot be read until content-addressed storage answers again."""

    transient = True


class NotAnchoredError(AnchoringError, NotFoundError):
    """There is no proof, because the message is in no anchored batch."""


class NotBatchedError(NotAnchoredError):
    """There is no proof, because no batch with the message was handed to the batch writer here."""


class ProofError(AnchoringError):
    """The proof does not hold."""


class TransparencyError(AnchoringError):
    """A signature of a ledger, or what it signs, cannot be used."""


class NoteError(TransparencyError, InputError):
    """The data is not a signed note or a key, or a signature is invalid."""


class CheckpointError(NoteError):
    """The note is not a checkpoint, or not of the ledger that was asked for."""


class UnknownSignerError(NoteError):
    """None of the known keys has signed the note."""


class TrustPolicyError(TransparencyError, InputError):
    """The trust policy (tlog-policy) cannot be read."""


class LedgerKeyError(TransparencyError, InputError):
    """The signing key of a ledger is missing, cannot be read, or cannot be made."""


class NotCosignedError(TransparencyError, NotFoundError):
    """The quorum of witnesses has signed no checkpoint of the ledger yet."""


class MonitorStateError(TransparencyError):
    """A monitor cannot use the file in which it remembers a ledger."""


class MonitorBusyError(TransparencyError, BusyError):
    """Another monitor uses the same state; try again when it has finished its look."""


class WitnessRefusalError(TransparencyError):
    """A witness refuses to cosign a checkpoint.

    ``known_size`` is the size of a larger tree that it cosigned, if that is the reason; ``is_fork`` says that its tree
    and the ledger's are not consistent.
    """

    def __init__(self, message: str, *, known_size: int | None = None, is_fork: bool = False) -> None:
        super().__init__(message)
        self.known_size = known_size
        self.is_fork = is_fork


class TimestampError(TransparencyError, InputError):
    """The data is not a time stamp, or an invalid one, or not of a trusted authority."""


class TimestampRefusalError(TransparencyError):
    """A time-stamping authority refuses a request."""
