"""A property that threads may ask for at the same time and that is computed once."""

from __future__ import annotations

import threading
from functools import cached_property
from typing import Any, Self, TypeVar, overload

T = TypeVar("T")


class locked_cached_property(cached_property[T]):  # noqa: N801 - used like the one of functools
    """As :class:`functools.cached_property`, whose lock went away with Python 3.12.

    Each object has a lock for each such property: objects do not wait for one another, and properties that ask for
    others cannot block each other as long as they do not ask in a circle. An error is not kept: the next caller
    tries again. Deleting the attribute (``del object.name``) forgets the value.
    """

    @overload
    def __get__(self, instance: None, owner: type[Any] | None = None) -> Self: ...

    @overload
    def __get__(self, instance: object, owner: type[Any] | None = None) -> T: ...

    def __get__(self, instance: object, owner: type[Any] | None = None) -> Self | T:
        if instance is None:
            return self
        name, values = self.func.__name__, vars(instance)
        with values.setdefault(f"_{name} (lock)", threading.RLock()):
            if name not in values:
                values[name] = self.func(instance)
            found: T = values[name]
            return found
