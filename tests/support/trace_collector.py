"""A collector of traces on loopback: it speaks OTLP over HTTP, and keeps every span that it is sent."""

from __future__ import annotations

import contextlib
import gzip
import threading
from collections.abc import Iterator, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import msgspec


class CollectedSpan(msgspec.Struct, frozen=True):
    """A span as it came over the wire; ids are hexadecimal, ``parent`` is empty at the root of a trace."""

    name: str
    trace: str
    id: str
    parent: str
    service: str
    attributes: Mapping[str, Any]
    links: tuple[str, ...]
    nanoseconds: int


class TraceCollector:
    """What was sent to the collector at ``url``."""

    def __init__(self, url: str, spans: list[CollectedSpan]) -> None:
        self.url = url
        self.spans = spans

    @property
    def environment(self) -> dict[str, str]:
        """The variables that make a process send its traces here, without delay."""
        return {
            "OTEL_EXPORTER_OTLP_ENDPOINT": self.url,
            "OTEL_EXPORTER_OTLP_PROTOCOL": "http/protobuf",
            "OTEL_BSP_SCHEDULE_DELAY": "100",
        }

    def of_trace(self, trace: str) -> dict[str, CollectedSpan]:
        """The spans of one trace, by name."""
        return {span.name: span for span in list(self.spans) if span.trace == trace}


@contextlib.contextmanager
def collecting() -> Iterator[TraceCollector]:
    """A collector for the length of the block. Needs the packages of the extra ``telemetry``."""
    spans: list[CollectedSpan] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            data = self.rfile.read(int(self.headers["Content-Length"]))
            if self.headers.get("Content-Encoding") == "gzip":
                data = gzip.decompress(data)
            found = self.path == "/v1/traces"
            if found:
                spans.extend(_read(data))
            self.send_response(200 if found else 404)
            self.send_header("Content-Type", "application/x-protobuf")
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, name="trace-collector")
    thread.start()
    try:
        yield TraceCollector(f"http://127.0.0.1:{server.server_port}", spans)
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def _read(data: bytes) -> Iterator[CollectedSpan]:
    from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

    request = ExportTraceServiceRequest()
    request.ParseFromString(data)
    for resource in request.resource_spans:
        service = _plain(resource.resource.attributes).get("service.name", "")
        for scope in resource.scope_spans:
            for span in scope.spans:
                yield CollectedSpan(
                    span.name, span.trace_id.hex(), span.span_id.hex(), span.parent_span_id.hex(), service,
                    _plain(span.attributes), tuple(link.trace_id.hex() for link in span.links),
                    span.end_time_unix_nano - span.start_time_unix_nano,
                )  # fmt: skip


def _plain(attributes: Any) -> dict[str, Any]:
    return {each.key: getattr(each.value, each.value.WhichOneof("value")) for each in attributes}
