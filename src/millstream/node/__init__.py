"""The node: the one place where settings become wired objects, part by part."""

from typing import TYPE_CHECKING

from millstream.core.lazy_names import lazy_names

if TYPE_CHECKING:
    from millstream.node.composition import Node
    from millstream.node.context import DATABASE
    from millstream.node.errors import NodeError, NodeFolderError, NodeNotFoundError, UnknownMessageError
    from millstream.node.registry import REGISTRY_LEDGER
    from millstream.node.reports import REPORT_LEDGER

__all__ = [
    "DATABASE",
    "REGISTRY_LEDGER",
    "REPORT_LEDGER",
    "Node",
    "NodeError",
    "NodeFolderError",
    "NodeNotFoundError",
    "UnknownMessageError",
]

__getattr__ = lazy_names(__name__)
