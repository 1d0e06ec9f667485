"""Time stamps (RFC 3161): authorities sign the digest of a ledger's checkpoint and the time, so that it is dated.

``TimestampClient`` asks an authority, ``TimestampCollector`` does so at an interval, ``TrustedAuthorities`` verifies
tokens. Needs ``pip install 'millstream[timestamps]'``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from millstream.core.lazy_names import lazy_names

if TYPE_CHECKING:
    from millstream.anchoring.timestamps.authorities import TrustedAuthorities, parse_authorities
    from millstream.anchoring.timestamps.client import TimestampClient
    from millstream.anchoring.timestamps.collector import TimestampCollector
    from millstream.anchoring.timestamps.token import TimestampToken, parse_token

__all__ = [
    "TimestampClient",
    "TimestampCollector",
    "TimestampToken",
    "TrustedAuthorities",
    "parse_authorities",
    "parse_token",
]

__getattr__ = lazy_names(__name__)
