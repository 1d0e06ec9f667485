"""A message that a consumer group has been given and that is not done."""

from __future__ import annotations

import dataclasses


@dataclasses.dataclass(slots=True)
class InFlightMessage:
    """One message on its way: with a consumer until ``until`` (microseconds), or waiting to be given again.

    ``attempts`` counts the deliveries; ``token`` proves that a receipt handle is the current one; ``client`` has the
    message, which an answer by ``connection`` carried. With ``renew`` the broker prolongs it, from ``since`` on, while
    that connection is there; which one it was is forgotten when the broker ends.
    """

    id: int
    attempts: int = 0
    until: int = 0
    token: int = 0
    client: str = ""
    renew: bool = False
    since: int = 0
    attempt_id: str = ""
    away: bool = False
    """Whether a consumer has it."""
    connection: str = ""

    def is_repeated_by(self, attempt_id: str) -> bool:
        """Whether the attempt *attempt_id* was given it before: who repeats an attempt never got the answer."""
        return bool(attempt_id) and self.attempt_id == attempt_id
