"""Traces from the producer of a message to its anchor, with OpenTelemetry where that is installed and switched on.

The trace of a message travels with it, as its header ``traceparent`` (W3C Trace Context), so that every process that
has it in hands adds its part to the same trace. Where nobody set up a provider of traces nothing is done, at the cost
of one look.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterable, Iterator
from typing import Any

from millstream.core.errors import InputError

HEADER = "traceparent"
MOST_LINKS = 128
"""Traces that one span is linked to: OpenTelemetry keeps no more by default."""

_NAME = "millstream"
_ENDPOINTS = ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")


class MissingTelemetryError(InputError):
    """Traces are asked for (OTEL_EXPORTER_OTLP_ENDPOINT), and need more: pip install 'millstream[telemetry]'."""


def is_on() -> bool:
    """Whether anybody has set up OpenTelemetry in this process."""
    api = sys.modules.get("opentelemetry.trace")
    if api is None:
        return False
    return type(api.get_tracer_provider()).__name__ not in ("ProxyTracerProvider", "NoOpTracerProvider")


def current() -> tuple[str, str] | None:
    """The ids of the trace and of the span that this code runs in, as hexadecimal; None where nobody traces."""
    if not is_on():
        return None
    from opentelemetry import trace

    context = trace.get_current_span().get_span_context()
    return (f"{context.trace_id:032x}", f"{context.span_id:016x}") if context.is_valid else None


@contextlib.contextmanager
def span(
    name: str, *, parent: str | None = None, links: Iterable[str] = (), began: int | None = None, **facts: Any
) -> Iterator[str | None]:
    """A span of this *name* for the length of the block, which gets its ``traceparent``; None where nobody traces.

    It continues the trace *parent*, or that of the block around it, and is linked to the traces *links*. *began* is
    when it began, if not now (microseconds since the epoch); *facts* are its attributes, under ``millstream.``.
    """
    if not is_on():
        yield None
        return
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
        context = made.get_span_context()
        yield f"00-{context.trace_id:032x}-{context.span_id:016x}-{int(context.trace_flags):02x}"


@contextlib.contextmanager
def exporting() -> Iterator[None]:
    """Send traces of this process to where the environment says (``OTEL_EXPORTER_OTLP_ENDPOINT``), if it does.

    The usual variables of OpenTelemetry hold (``OTEL_SERVICE_NAME``, ``OTEL_TRACES_SAMPLER`` …). What is left at the
    end is sent then. Raises :class:`MissingTelemetryError` where the packages are missing.
    """
    if is_on() or not any(os.environ.get(name) for name in _ENDPOINTS):
        yield
        return
    try:
        from opentelemetry import trace
        from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
    except ImportError as error:
        raise MissingTelemetryError from error

    provider = TracerProvider(resource=Resource.create({"service.name": os.environ.get("OTEL_SERVICE_NAME", _NAME)}))
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    trace.set_tracer_provider(provider)
    try:
        yield
    finally:
        provider.shutdown()


def _span_context(traceparent: str) -> Any:
    """The context that the header says; None where it is none."""
    from opentelemetry import trace
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

    found = TraceContextTextMapPropagator().extract({HEADER: traceparent})
    context = trace.get_current_span(found).get_span_context()
    return context if context.is_valid else None
