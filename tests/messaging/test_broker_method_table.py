"""Every method that the service's descriptor lists is served as the descriptor says, or is refused on purpose."""

from __future__ import annotations

import inspect

import pytest

from millstream.messaging.broker.handlers.method_table import (
    BATCH_CALLS,
    STREAM_CALLS,
    TELEMETRY,
    UNARY_CALLS,
    UNSUPPORTED,
    StreamCall,
    UnaryCall,
)
from millstream.messaging.protocol.descriptor_methods import methods


def test_every_method_of_the_descriptor_has_exactly_one_entry() -> None:
    entries = [*UNARY_CALLS, *STREAM_CALLS, TELEMETRY, *UNSUPPORTED]
    missing = set(methods()) - set(entries)
    assert not missing, f"add {missing} to a table of broker/handlers/method_table.py, or to UNSUPPORTED there"
    assert sorted(entries) == sorted(methods())


@pytest.mark.parametrize("name", [*UNARY_CALLS, *STREAM_CALLS])
def test_an_entry_has_the_types_of_its_method(name: str) -> None:
    method = methods()[name]
    call: UnaryCall[object, object] | StreamCall[object, object] = UNARY_CALLS.get(name) or STREAM_CALLS[name]
    assert (call.request, call.response) == (method.request, method.response)
    assert (method.streams_requests, method.streams_responses) == (False, name in STREAM_CALLS)
    annotations = inspect.get_annotations(call.handler)
    assert annotations["return"] in (f"v2.{call.response.__name__}", f"AsyncIterator[v2.{call.response.__name__}]")
    assert f"v2.{call.request.__name__}" in annotations.values()
    assert call.handler.__name__.replace("_", "") == name.lower()


def test_telemetry_is_a_stream_in_both_directions() -> None:
    assert (methods()[TELEMETRY].streams_requests, methods()[TELEMETRY].streams_responses) == (True, True)


@pytest.mark.parametrize("name", sorted(BATCH_CALLS))
def test_a_batch_entry_has_the_types_of_its_method(name: str) -> None:
    call = BATCH_CALLS[name]
    assert call.method.name == name
    annotations = inspect.get_annotations(call.handler)
    assert annotations["return"] == call.method.answer.__name__
    assert any(str(each).removeprefix("v2.") == call.method.request.__name__ for each in annotations.values())
