"""What can be asked of a node and done to it, by topic: endpoints, which the pages of the console show as well."""

from __future__ import annotations

from collections.abc import Sequence

from millstream.rest.endpoint import Endpoint
from millstream.rest.views import (
    anchors,
    batches,
    holds,
    identifiers,
    integrity,
    ledgers,
    logs,
    members,
    message_search,
    overview,
    policies,
    proofs,
    queues,
    search,
    system,
    topics,
)

_MODULES = (
    overview, logs, message_search, search, topics, queues, policies, integrity, holds, batches, anchors, ledgers,
    identifiers, proofs, members, system,
)  # fmt: skip


def all_endpoints() -> Sequence[Endpoint]:
    """Every endpoint, by topic."""
    return [endpoint for module in _MODULES for endpoint in module.endpoints.all]
