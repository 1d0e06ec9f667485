"""How long is waited between attempts, by the policy that a server sends."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from millstream.messaging.protocol import v2


class Backoff(msgspec.Struct, frozen=True):
    """At most ``attempts``; between them ``initial × multiplier^(n−1)`` seconds, ``longest`` at most.

    With ``pauses`` it is those, in seconds; the last one repeats.
    """

    attempts: int = 3
    initial: float = 0.0
    longest: float = 0.0
    multiplier: float = 1.0
    pauses: Sequence[float] = ()

    def delay(self, attempt: int) -> float:
        """The seconds to wait after attempt number *attempt* (1 is the first)."""
        if attempt < 1:
            raise ValueError(f"attempt must be at least 1, not {attempt}")
        if self.pauses:
            return self.pauses[min(attempt, len(self.pauses)) - 1]
        try:
            return min(self.initial * self.multiplier ** (attempt - 1), self.longest)
        except OverflowError:
            return self.longest


def read_backoff(policy: v2.RetryPolicy, *, attempts: int | None = None) -> Backoff:
    """The policy of a server, with *attempts* instead of its number if the client keeps its own."""
    most = policy.max_attempts if attempts is None else attempts
    if policy.WhichOneof("strategy") == "customized_backoff":
        pauses = tuple(each.ToTimedelta().total_seconds() for each in policy.customized_backoff.next)
        return Backoff(most, pauses=pauses)
    growing = policy.exponential_backoff
    initial, longest = growing.initial.ToTimedelta().total_seconds(), growing.max.ToTimedelta().total_seconds()
    return Backoff(most, initial, longest, growing.multiplier)
