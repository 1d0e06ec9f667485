"""Errors of a node."""

from __future__ import annotations

from millstream.core.errors import InputError, MillstreamError, NotFoundError


class NodeError(MillstreamError):
    """The node cannot be used."""


class NodeNotFoundError(NodeError, NotFoundError):
    """There is no node in this folder."""


class UnknownMessageError(NodeError, NotFoundError):
    """The log has no message of this id."""


class NodeFolderError(NodeError, InputError):
    """This folder cannot be a node's."""
