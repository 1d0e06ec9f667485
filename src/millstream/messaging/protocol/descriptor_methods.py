"""The methods of the service, as its descriptor lists them."""

from __future__ import annotations

from typing import Any

import msgspec

from millstream.messaging.protocol import v2

SERVICE = "apache.rocketmq.v2.MessagingService"


class Method(msgspec.Struct, frozen=True):
    """One method: its name, the classes of request and response, and which of them are streams."""

    name: str
    request: Any
    response: Any
    streams_requests: bool
    streams_responses: bool

    @property
    def path(self) -> str:
        """The path under which the transport knows it."""
        return f"/{SERVICE}/{self.name}"

    def read_request(self, data: bytes) -> Any:
        """A request as it was sent. Raises protobuf's ``DecodeError``."""
        return self.request.FromString(data)


def methods() -> dict[str, Method]:
    """Every method of the service by its name."""
    service: Any = v2.DESCRIPTOR.services_by_name[SERVICE.rpartition(".")[2]]
    return {
        method.name: Method(
            method.name,
            getattr(v2, method.input_type.name),
            getattr(v2, method.output_type.name),
            method.client_streaming,
            method.server_streaming,
        )
        for method in service.methods
    }
