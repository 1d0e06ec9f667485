"""The node: the one place where settings become wired objects, part by part."""

from millstream.node.composition import Node
from millstream.node.databases import DATABASE
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
