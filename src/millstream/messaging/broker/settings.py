"""Access to a broker: the section ``broker`` of the settings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from millstream.core.address import InvalidAddressError, parse_address
from millstream.core.amounts import Duration, format_duration
from millstream.core.clock import MICROSECONDS
from millstream.core.errors import InputError
from millstream.core.settings import Section

MAX_ATTEMPTS = 17
"""How often a message is delivered before it is dead, unless a client says otherwise; what Apache RocketMQ does too."""

BACKOFF = tuple(s * MICROSECONDS for s in (1, 5, 10, 30, *range(60, 660, 60), 1200, 1800, 3600, 7200))
"""For how long consumers wait between deliveries (microseconds), unless a client says otherwise; the last repeats."""

_MOST_ATTEMPTS = 1_000
_MOST_PAUSES = 100
_LONGEST_PAUSE = 12 * 3600 * MICROSECONDS


class RetryRuleError(InputError):
    """Messages cannot be delivered again by these rules."""


def check_retries(max_attempts: int, backoff: Sequence[int], where: str = "") -> None:
    """Raise :class:`RetryRuleError` unless messages can be delivered by these rules; the error begins with *where*."""
    if not 0 <= max_attempts <= _MOST_ATTEMPTS:
        raise RetryRuleError(f"{where}max_attempts must be 1 to {_MOST_ATTEMPTS:,}, not {max_attempts:,}")
    if len(backoff) > _MOST_PAUSES:
        raise RetryRuleError(f"{where}backoff must have at most {_MOST_PAUSES} durations, not {len(backoff):,}")
    if wrong := [pause for pause in backoff if not 0 < pause <= _LONGEST_PAUSE]:
        raise RetryRuleError(
            f"{where}backoff: each duration must be more than 0 and at most {format_duration(_LONGEST_PAUSE)}, not "
            f"{format_duration(wrong[0])}"
        )


class KeySettings(Section, frozen=True):
    """An access key and its permissions. Its secret is the content of ``secret_file``.

    ``publish`` and ``subscribe`` are names of topics and ``groups`` names of consumer groups; ``*`` in a name matches
    any text, including a namespace (``space%topic``). With ``token_file``, calls must also carry the session token
    in this file. ``admin`` may administer topics, consumer groups and clients.
    """

    secret_file: str
    token_file: str = ""
    publish: tuple[str, ...] = ()
    subscribe: tuple[str, ...] = ()
    groups: tuple[str, ...] = ("*",)
    admin: bool = False


class BrokerSettings(Section, frozen=True):
    """The broker of `millstream serve`. With ``keys`` every call must be signed with one of these access keys.

    A message that a consumer fails to handle is delivered at most ``max_attempts`` times, with the pauses ``backoff``
    in between (the last one repeats). Then it becomes a dead letter of its group. A group can have its own limits
    (`millstream group configure`). ``tls_certificate`` and ``tls_key`` (PEM files) encrypt connections; with
    ``tls_client_ca`` clients need a certificate of that authority. ``advertised`` (HOST:PORT) is where routes lead
    clients: by default to the address by which they came, and where several processes serve the node, to the address at
    which the broker listens.
    """

    keys: Mapping[str, KeySettings] = msgspec.field(default_factory=dict)
    max_attempts: int = MAX_ATTEMPTS
    backoff: tuple[Duration, ...] = tuple(map(Duration, BACKOFF))
    tls_certificate: str = ""
    tls_key: str = ""
    tls_client_ca: str = ""
    advertised: str = ""

    def __post_init__(self) -> None:
        for name in ("max_attempts", "backoff"):
            if not getattr(self, name):
                raise ValueError(f"{name} must not be 0 or empty: set a value, or remove the setting")
        try:
            check_retries(self.max_attempts, self.backoff)
        except RetryRuleError as error:
            raise ValueError(str(error)) from error  # the reader of the settings says where
        try:
            if self.advertised:
                parse_address(self.advertised)
        except InvalidAddressError as error:
            raise ValueError(f"advertised: {error}") from error
