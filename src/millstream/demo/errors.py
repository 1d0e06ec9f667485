"""The errors of the demo."""

from __future__ import annotations

from millstream.core.errors import InputError, MillstreamError


class DemoError(MillstreamError):
    """The demo's figures do not add up."""


class NotADemoError(InputError):
    """The node was not made by the demo."""
