"""Traces from the producer of a message to its anchor, with OpenTelemetry where that is installed and switched on.

The trace of a message travels with it, as its header ``traceparent`` (W3C Trace Context), so that every process that
holds it adds its part to the same trace. Without a trace provider nothing is done, at the cost
of one look.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from millstream.core.errors import InputError

if TYPE_CHECKING:
    from millstream.core.message import Message

HEADER = "traceparent"
MOST_LINKS = 128
"""Traces that one span is linked to: OpenTelemetry keeps no more by default."""

_NAME = "millstream"
_NO_SPAN = contextlib.nullcontext()
_PROTOCOLS = ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL")
_ENDPOINTS = ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")


class MissingTelemetryError(InputError):
    """Traces (OTEL_EXPORTER_OTLP_ENDPOINT) need more packages: pip install 'millstream[telemetry]'."""


class TelemetryProtocolError(InputError):
    """Traces are not sent in this protocol."""


def is_on() -> bool:
    """Whether anybody has set up OpenTelemetry in this process."""
    api = sys.modules.get("opentelemetry.trace")
    if api is None:
        return False
    return type(api.get_tracer_provider()).__name__ not in ("ProxyTracerProvider", "NoOpTracerProvider")


def current() -> tuple[str, str] | None:
    """The ids of the trace and of the span that this code runs in, as hexadecimal; None without tracing."""
    if not is_on():
        return None
    from opentelemetry import trace

    context = trace.get_current_span().get_span_context()
    return (f"{context.trace_id:032x}", f"{context.span_id:016x}") if context.is_valid else None


def span(
    name: str, *, parent: str | None = None, links: Iterable[str] = (), began: int | None = None, **facts: Any
) -> contextlib.AbstractContextManager[str | None]:
    """A span of this *name* for the length of the block, which gets its ``traceparent``; None without tracing.

    It continues the trace *parent*, or that of the block around it, and is linked to the traces *links*. *began* is
    when it began, if not now (microseconds since the epoch); *facts* are its attributes, under ``millstream.``.
    """
    return _span(name, parent, links, began, facts) if is_on() else _NO_SPAN


@contextlib.contextmanager
def _span(
    name: str, parent: str | None, links: Iterable[str], began: int | None, facts: Mapping[str, Any]
) -> Iterator[str | None]:
    from opentelemetry import trace

    contexts = [found for found in map(_span_context, list(links)[:MOST_LINKS]) if found is not None]
    outer = _span_context(parent) if parent else None
    tracer = trace.get_tracer(_NAME)
    with tracer.start_as_current_span(
        name,
        context=None if outer is None else trace.set_span_in_context(trace.NonRecordingSpan(outer)),
        links=[trace.Link(context) for context in contexts],
        attributes={f"{_NAME}.{key}": value for key, value in facts.items() if value is not None},
        start_time=None if began is None else began * 1000,
    ) as made:
        yield _traceparent(made.get_span_context())


@contextlib.contextmanager
def entering(name: str, messages: Sequence[Message], **facts: Any) -> Iterator[Sequence[Message]]:
    """*messages* on their way into a log, each with a span of this *name* for the length of the block.

    They carry these spans from here on. A message that came in a trace (its header ``traceparent``) continues in that,
    others in the trace of the block around it, or in one that begins here. Without tracing they stay unchanged.
    """
    if not is_on() or not messages:
        yield messages
        return
    from opentelemetry import trace

    tracer, here = trace.get_tracer(_NAME), trace.get_current_span()
    attributes = {f"{_NAME}.{key}": value for key, value in facts.items()}
    spans, carrying = [], []
    for message in messages:
        others = tuple(header for header in message.headers if header[0] != HEADER)
        came = dict(message.headers).get(HEADER, b"").decode("ascii", "replace")
        outer = _span_context(came) if came else None
        around = here if outer is None else trace.NonRecordingSpan(outer)
        spans.append(tracer.start_span(name, trace.set_span_in_context(around), attributes=attributes))
        own = (HEADER, _traceparent(spans[-1].get_span_context()).encode("ascii"))
        carrying.append(msgspec.structs.replace(message, headers=(*others, own)))
    try:
        yield carrying
    except BaseException as error:
        for each in spans:
            each.record_exception(error)
            each.set_status(trace.StatusCode.ERROR, str(error))
        raise
    finally:
        for each in spans:
            each.end()


@contextlib.contextmanager
def exporting() -> Iterator[None]:
    """Send traces of this process to where the environment says (``OTEL_EXPORTER_OTLP_ENDPOINT``), if it does.

    The usual variables of OpenTelemetry hold (``OTEL_SERVICE_NAME``, ``OTEL_TRACES_SAMPLER``,
    ``OTEL_EXPORTER_OTLP_PROTOCOL``: ``grpc``, the default here, or ``http/protobuf``). What is left at the end is sent
    then. Raises :class:`MissingTelemetryError` where the packages are missing, and :class:`TelemetryProtocolError`.
    """
    if is_on() or not any(os.environ.get(name) for name in _ENDPOINTS):
        yield
        return
    try:
        from opentelemetry import trace
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor

        exporter = _exporter()
    except ImportError as error:
        raise MissingTelemetryError from error

    provider = TracerProvider(resource=Resource.create({"service.name": os.environ.get("OTEL_SERVICE_NAME", _NAME)}))
    provider.add_span_processor(BatchSpanProcessor(exporter))
    trace.set_tracer_provider(provider)
    try:
        yield
    finally:
        provider.shutdown()


def _exporter() -> Any:
    """The exporter of spans for the protocol that the environment names."""
    protocol = next((found for name in _PROTOCOLS if (found := os.environ.get(name))), "grpc")
    if protocol == "grpc":
        from opentelemetry.exporter.otlp.proto.grpc import trace_exporter as by_grpc

        return by_grpc.OTLPSpanExporter()
    if protocol == "http/protobuf":
        from opentelemetry.exporter.otlp.proto.http import trace_exporter as by_http

        return by_http.OTLPSpanExporter()
    raise TelemetryProtocolError(
        f"unsupported protocol {protocol[:40]!r} for traces: set OTEL_EXPORTER_OTLP_PROTOCOL to grpc or http/protobuf"
    )


def _traceparent(context: Any) -> str:
    return f"00-{context.trace_id:032x}-{context.span_id:016x}-{int(context.trace_flags):02x}"


def _span_context(traceparent: str) -> Any:
    """The context that the header says; None where it is none."""
    from opentelemetry import trace
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

    found = TraceContextTextMapPropagator().extract({HEADER: traceparent})
    context = trace.get_current_span(found).get_span_context()
    return context if context.is_valid else None
