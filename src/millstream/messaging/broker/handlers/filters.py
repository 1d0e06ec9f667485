"""Filters of consumers: by tag, or by a condition over properties."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Final

from millstream.log import Message
from millstream.messaging.broker.handlers.sql92 import compile_condition
from millstream.messaging.broker.storage.wire_codec import TAG, header, properties
from millstream.messaging.errors import StatusError
from millstream.messaging.protocol import v2

MAX_TAG_FILTER: Final = 4096
"""The characters of a filter by tag: filters of all consumers are kept."""

MessageFilter = Callable[[Message], bool]


def read_filter(expression: v2.FilterExpression) -> MessageFilter | None:
    """The test that *expression* stands for; None where everything is wanted. Raises ILLEGAL_FILTER_EXPRESSION."""
    return _filter(expression.type, expression.expression.strip())


@lru_cache(maxsize=1024)
def _filter(kind: int, text: str) -> MessageFilter | None:
    if kind == v2.SQL:
        return _by_condition(text)
    if text in ("", "*"):
        return None
    if len(text) > MAX_TAG_FILTER:
        raise StatusError(
            v2.ILLEGAL_FILTER_EXPRESSION,
            f"the tag filter has {len(text):,} characters; the limit is {MAX_TAG_FILTER:,}: name fewer tags, or use *",
        )
    tags = frozenset(tag.strip() for tag in text.split("||"))
    if not all(tags) or any("|" in tag for tag in tags):
        raise StatusError(v2.ILLEGAL_FILTER_EXPRESSION, f"invalid tag filter {text[:80]!r}: write a || b, or *")
    return lambda message: header(message, TAG) in tags


def _by_condition(text: str) -> MessageFilter:
    if not text:
        raise StatusError(v2.ILLEGAL_FILTER_EXPRESSION, "the SQL filter is empty: write a condition")
    condition = compile_condition(text)

    def wanted(message: Message) -> bool:
        found = dict(properties(message))
        tag = header(message, TAG)
        if tag:
            found.setdefault("TAGS", tag)
        return condition(found)

    return wanted
