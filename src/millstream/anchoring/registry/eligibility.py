"""Which operations can have an effect on their DID: the others are refused when they arrive, or at the cut.

Any client can sign an operation on any DID with its own key. Accepted and anchored, it would have no effect, and the
owner's operations would wait behind it.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final

import msgspec
import sqlalchemy as sa

from millstream.anchoring.registry.chain_cache import ChainCache
from millstream.anchoring.registry.operation_store import OperationStore
from millstream.anchoring.sidetree import Chain, Operation, OperationType
from millstream.anchoring.sidetree.encoding import commitment_of
from millstream.anchoring.sidetree.operations import stored_operation
from millstream.core.errors import MillstreamError

MAX_HELD: Final = 5
"""Maximum number of open operations on one DID whose key is not known here."""

_REMEMBERED: Final = 50_000


class OperationRefusal(msgspec.Struct, frozen=True):
    """Why an operation is refused: a ``code`` for programs, a ``text`` for people.

    With ``may_change`` it may be accepted after ledger entries that this registry has not observed yet.
    """

    code: str
    text: str
    may_change: bool = False


class _Commitments(msgspec.Struct, frozen=True):
    """The commitments that an operation opens and makes. ``update`` says whether the opened one is for updates."""

    update: bool
    opens: str | None
    next_update: str | None
    next_recovery: str | None


class _OpenOperations:
    """The open operations of one DID: the commitments that can be opened, and how many operations are open."""

    def __init__(self, chain: Chain) -> None:
        self._chain = chain
        state = chain.state
        self.known = state is not None
        self._updates = {state.update_commitment} if state else set[str | None]()
        self._recoveries = {state.recovery_commitment} if state else set[str | None]()
        self.open = self.held = 0

    def opens(self, links: _Commitments) -> bool:
        """Whether the operation opens a commitment that was observed, or one that an open operation makes."""
        made = links.next_update if links.update else links.next_recovery
        opened = links.opens in (self._updates if links.update else self._recoveries)
        return opened and made != links.opens and not self._chain.was_opened(made)

    def add(self, links: _Commitments) -> None:
        """Add an operation that is open or was just observed."""
        if links.opens is not None and self._chain.was_opened(links.opens):
            return
        self.open += 1
        if links.opens is not None and not self.opens(links):
            self.held += 1
            return
        self.known = True
        self._updates.add(links.next_update)
        self._recoveries.add(links.next_recovery)

    @property
    def is_deactivated(self) -> bool:
        return self._chain.state is not None and self._chain.state.deactivated

    @property
    def is_created(self) -> bool:
        return self._chain.state is not None


class Eligibility:
    """Judges operations by the *chains* of observed operations, and by the open operations in *store*.

    *is_ahead* says whether the ledger has entries that were not observed yet: then an operation with an unknown key
    may follow a state that this registry has not seen, and is held until its batch is cut. A DID has at most
    *most_open* open operations.
    """

    def __init__(
        self, chains: ChainCache, store: OperationStore, is_ahead: Callable[[], bool], *, most_open: int = 1_000
    ) -> None:
        self._chains = chains
        self._store = store
        self._is_ahead = is_ahead
        self._most_open = most_open
        self._remembered: OrderedDict[str, _Commitments] = OrderedDict()

    def refusals(self, operations: Sequence[Operation]) -> Sequence[OperationRefusal | None]:
        """For each of *operations*, in order, why it is refused; None if it is accepted. Not thread-safe."""
        asked = dict.fromkeys(each.suffix for each in operations if each.type != OperationType.CREATE)
        waiting = self._store.database.query(lambda c: self._waiting(c, list(asked))) if asked else {}
        found = list[OperationRefusal | None]()
        ahead: bool | None = None
        for operation in operations:
            if operation.suffix not in waiting:  # a create: whether it is the first one is decided at the cut
                found.append(None)
                continue
            of_did, links = waiting[operation.suffix], _links_of(operation)
            refusal = _refusal(operation, of_did, links)
            if refusal is not None and refusal.may_change and of_did.held < MAX_HELD:
                ahead = self._may_be_ahead() if ahead is None else ahead
                refusal = None if ahead else refusal
            if refusal is None and of_did.open >= self._most_open:
                refusal = OperationRefusal(
                    "too_many_open",
                    f"{of_did.open:,} operations on this DID are waiting to be anchored, the limit: send this "
                    "operation again later",
                )
            if refusal is None:
                of_did.add(links)
            found.append(refusal)
        return found

    def accepted(self, operations: Iterable[tuple[str, Operation]]) -> None:
        """Those *operations* and their ids were stored, so that they need not be read again. Not thread-safe."""
        self._remember({name: _links_of(operation) for name, operation in operations})

    def _may_be_ahead(self) -> bool:
        try:
            return self._is_ahead()
        except MillstreamError:  # the ledger cannot be read: it may have more entries
            return True

    def verdicts(self, operations: Sequence[Operation]) -> Sequence[str | None]:
        """For each of *operations*, the first open ones of their DIDs, why it has no effect now; None if it has one."""
        suffixes = [operation.suffix for operation in operations]
        chains = self._store.database.query(lambda connection: self._chains.of(connection, suffixes))
        return [_verdict(operation, chains[operation.suffix]) for operation in operations]

    def _waiting(self, connection: sa.Connection, suffixes: Sequence[str]) -> Mapping[str, _OpenOperations]:
        # Read first: an operation observed meanwhile is then in one of the two.
        rows = self._store.open_ids(connection, suffixes)
        found = {suffix: _OpenOperations(chain) for suffix, chain in self._chains.of(connection, suffixes).items()}
        unknown = [name for _, name in rows if name not in self._remembered]
        read = {
            name: _links_of(stored_operation(request, suffix))
            for name, suffix, request in self._store.requests(connection, unknown)
        }
        for suffix, name in rows:
            if (links := self._remembered.get(name) or read.get(name)) is not None:
                found[suffix].add(links)
        self._remember(read)
        return found

    def _remember(self, links: Mapping[str, _Commitments]) -> None:
        self._remembered.update(links)
        while len(self._remembered) > _REMEMBERED:
            self._remembered.popitem(last=False)


def _refusal(operation: Operation, waiting: _OpenOperations, links: _Commitments) -> OperationRefusal | None:
    if waiting.is_deactivated:
        return OperationRefusal("not_applicable", "the DID is deactivated and accepts no more operations")
    if operation.type == OperationType.CREATE:
        return OperationRefusal("not_applicable", "the DID already exists") if waiting.is_created else None
    if waiting.opens(links):
        return None
    if not waiting.known:
        return OperationRefusal("not_applicable", "unknown DID: submit its create operation first", may_change=True)
    text = (
        "the operation reveals a key to which the DID is not committed: the key was used before, or never belonged to "
        "the DID"
    )
    return OperationRefusal("not_applicable", text, may_change=True)


def _verdict(operation: Operation, chain: Chain) -> str | None:
    return None if chain.accepts(operation) else chain.reason(operation)


def _links_of(operation: Operation) -> _Commitments:
    update = operation.type == OperationType.UPDATE
    if operation.type == OperationType.CREATE:
        opens, recovery = None, (operation.suffix_data or {}).get("recoveryCommitment")
    else:
        opens, recovery = commitment_of(operation.reveal_value), operation.payload.get("recoveryCommitment")
    return _Commitments(update, opens, (operation.delta or {}).get("updateCommitment"), recovery)
