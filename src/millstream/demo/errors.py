"""The errors of the demo."""

from __future__ import annotations

from millstream.core.errors import MillstreamError


class DemoError(MillstreamError):
    """The demo's figures do not add up."""
