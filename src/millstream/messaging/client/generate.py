"""Writes ``blocking.py`` from the asynchronous clients: ``make proto``.

Every public method that is a coroutine becomes one of the same name, arguments and result that blocks.
"""

from __future__ import annotations

import inspect
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from millstream.messaging.client.client import Client
from millstream.messaging.client.consumer import Consumer
from millstream.messaging.client.options import DEFAULTS
from millstream.messaging.client.producer import Producer
from millstream.messaging.client.push_consumer import PushConsumer
from millstream.messaging.client.simple_consumer import SimpleConsumer

TARGET = Path(__file__).parent / "blocking.py"

_HEAD = '''"""The clients for programs without an event loop: the same names, methods that block.

Generated from the asynchronous clients by `make proto`; do not edit.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import timedelta

from millstream.core.clock import Clock
from millstream.messaging.client import producer
from millstream.messaging.client import simple_consumer
from millstream.messaging.client import push_consumer
from millstream.messaging.client.loop_thread import Blocking, BlockingTransaction, in_threads
from millstream.messaging.client.message import Message, Receipt, Received
from millstream.messaging.client.options import DEFAULTS, Options
from millstream.messaging.client.producer import Resolution
from millstream.messaging.client.subscription import Filter

Checker = Callable[[Received], Resolution]
Listener = Callable[[Received], bool | None]
'''
_SHARED = set(dir(Client)) | set(dir(Consumer))  # what a start, a close and the kinds of clients need


def generate() -> str:
    """The text of ``blocking.py``."""
    return "\n\n".join([_HEAD, *(_class(each) for each in (Producer, SimpleConsumer, PushConsumer))])


def _class(original: type[Client]) -> str:
    module = original.__module__.rpartition(".")[2]
    lines = [
        f"class {original.__name__}(Blocking[{module}.{original.__name__}]):",
        f'    """:class:`millstream.messaging.client.{original.__name__}`, blocking."""',
        "",
        *_constructor(original, module),
    ]
    for name, method in vars(original).items():
        if inspect.iscoroutinefunction(method) and not name.startswith("_") and name not in _SHARED:
            lines += ["", *_method(name, method)]
    if "__aiter__" in vars(original):
        lines += ["", *_iteration(original)]
    return "\n".join(lines) + "\n"


def _constructor(original: type[Client], module: str) -> Iterator[str]:
    signature = inspect.signature(original.__init__)
    arguments = [parameter for parameter in signature.parameters.values() if parameter.name != "self"]
    yield f"    def __init__({_parameters(signature)}) -> None:"
    passed = ", ".join(
        f"{each.name}={_wrapped(each)}" if each.kind is each.KEYWORD_ONLY else _wrapped(each) for each in arguments
    )
    yield f"        super().__init__({module}.{original.__name__}({passed}))"


def _wrapped(parameter: inspect.Parameter) -> str:
    """How an argument is handed on: what is called back may block."""
    if parameter.annotation == "Checker | None":
        return f"None if {parameter.name} is None else in_threads({parameter.name})"
    return f"in_threads({parameter.name})" if parameter.annotation == "Listener" else parameter.name


def _method(name: str, method: Any) -> Iterator[str]:
    signature = inspect.signature(method)
    result = signature.return_annotation
    begun = result == "Transaction"
    passed = ", ".join(map(_passed, list(signature.parameters.values())[1:]))
    yield f"    def {name}({_parameters(signature)}) -> {'BlockingTransaction' if begun else result}:"
    yield textwrap.indent(f'"""{inspect.getdoc(method)}"""', " " * 8).replace("\n        \n", "\n\n")
    call = f"self._loop.run(self._client.{name}({passed}))"
    if begun:
        yield f"        return BlockingTransaction(self._loop, {call})"
    else:
        yield f"        {'' if result == 'None' else 'return '}{call}"


def _iteration(original: type[Client]) -> Iterator[str]:
    yield "    def __iter__(self) -> Iterator[Received]:"
    yield f'        """{inspect.getdoc(original.__aiter__)}"""'  # type: ignore[attr-defined]
    yield "        while True:"
    yield "            yield from self.receive()"


def _parameters(signature: inspect.Signature) -> str:
    found: list[str] = []
    for parameter in signature.parameters.values():
        if parameter.kind is parameter.KEYWORD_ONLY and "*" not in found and not any(x.startswith("*") for x in found):
            found.append("*")
        star = "*" if parameter.kind is parameter.VAR_POSITIONAL else ""
        kind = "" if parameter.name == "self" else f": {parameter.annotation}"
        found.append(f"{star}{parameter.name}{kind}{_default(parameter)}")
    return ", ".join(found)


def _default(parameter: inspect.Parameter) -> str:
    if parameter.default is parameter.empty:
        return ""
    return f" = {'DEFAULTS' if parameter.default is DEFAULTS else repr(parameter.default)}"


def _passed(parameter: inspect.Parameter) -> str:
    if parameter.kind is parameter.VAR_POSITIONAL:
        return f"*{parameter.name}"
    return f"{parameter.name}={parameter.name}" if parameter.kind is parameter.KEYWORD_ONLY else parameter.name


if __name__ == "__main__":
    TARGET.write_text(generate(), "utf-8")
