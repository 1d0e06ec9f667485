"""The log: messages in order, durable, with the ids 1, 2, 3 … (promises P1, P2, P3, P10).

>>> from millstream.log import LogSpec, Message, open_store
>>> with open_store("memory://") as store:
...     log = store.log(LogSpec("weather"))
...     with log.writer() as writer:
...         ids = writer.append([Message(b"21.5", source="JFK", key="temp"), Message(b"0.4", source="EWR", key="wind")])
...     with log.reader("report") as reader:
...         for batch in reader.batches():
...             print([message.body for message in batch])
...             reader.ack(batch.ids)
[b'21.5', b'0.4']
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from millstream.core.lazy_names import lazy_names

if TYPE_CHECKING:
    from millstream.core.message import MESSAGE_SCHEMA, Message
    from millstream.log.batch import Batch
    from millstream.log.errors import (
        CorruptBlockError,
        DamagedLogError,
        DurabilityTimeoutError,
        FencedError,
        LogError,
        LogInputError,
        LogNotFoundError,
        MessageTooLargeError,
        MissingBlockError,
        StorageBusyError,
        StorageError,
        StorageFullError,
        StorageReadOnlyError,
        StorageUnavailableError,
        SystemLogError,
        TrimmedError,
        WriterBusyError,
        WriterFailedError,
    )
    from millstream.log.frontier import Frontier
    from millstream.log.gap import Gap
    from millstream.log.ids import MAX_ID, BlockRange, IdRange
    from millstream.log.kinds import DATA_KINDS, SYSTEM_KINDS, Kind, is_system
    from millstream.log.log import Log
    from millstream.log.log_info import LogInfo
    from millstream.log.message_search import MessageFilter, MessageSearchStep, UnreadableIds, search_messages
    from millstream.log.reading.reader import Reader
    from millstream.log.sourced import Sourced, as_sourced
    from millstream.log.spec import LogSpec, system_log, user_log
    from millstream.log.store import LogStore, open_store
    from millstream.log.tiering import TierInfo, Tiering, TieringResult
    from millstream.log.upkeep.copying import LogCopyResult, copy_consumers, copy_log
    from millstream.log.upkeep.retention import Retention, RetentionPlan
    from millstream.log.upkeep.retention_enforcer import RetentionEnforcer
    from millstream.log.upkeep.vacuuming import VacuumResult
    from millstream.log.upkeep.verification import Verification
    from millstream.log.writing.writer import Writer

__all__ = [
    "DATA_KINDS",
    "MAX_ID",
    "MESSAGE_SCHEMA",
    "SYSTEM_KINDS",
    "Batch",
    "BlockRange",
    "CorruptBlockError",
    "DamagedLogError",
    "DurabilityTimeoutError",
    "FencedError",
    "Frontier",
    "Gap",
    "IdRange",
    "Kind",
    "Log",
    "LogCopyResult",
    "LogError",
    "LogInfo",
    "LogInputError",
    "LogNotFoundError",
    "LogSpec",
    "LogStore",
    "Message",
    "MessageFilter",
    "MessageSearchStep",
    "MessageTooLargeError",
    "MissingBlockError",
    "Reader",
    "Retention",
    "RetentionEnforcer",
    "RetentionPlan",
    "Sourced",
    "StorageBusyError",
    "StorageError",
    "StorageFullError",
    "StorageReadOnlyError",
    "StorageUnavailableError",
    "SystemLogError",
    "TierInfo",
    "Tiering",
    "TieringResult",
    "TrimmedError",
    "UnreadableIds",
    "VacuumResult",
    "Verification",
    "Writer",
    "WriterBusyError",
    "WriterFailedError",
    "as_sourced",
    "copy_consumers",
    "copy_log",
    "is_system",
    "open_store",
    "search_messages",
    "system_log",
    "user_log",
]

__getattr__ = lazy_names(__name__)
