"""The description of the interface for programs, as OpenAPI 3.1; ``docs/reference/openapi.json`` is a copy of it.

``python -m millstream.rest.description FILE`` writes that copy anew.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from millstream.core.durable import write_durably
from millstream.rest.endpoint import PREFIX
from millstream.rest.openapi import document, encode
from millstream.rest.views import all_endpoints

_TEXTS = {
    400: "Invalid request; the message says where",
    401: "Not signed in, or a wrong password",
    403: "The role does not allow it, or the request comes from another site",
    404: "Not found",
    408: "The rest of the request did not arrive in time",
    409: "Not possible in the current state; the message says why",
    412: "Another version was saved meanwhile",
    413: "The body is too large; it is not read",
    414: "The address is too long",
    415: "The content type is not application/json in UTF-8",
    428: "The header If-Match is missing",
    429: "Too many wrong passwords",
    503: "In use by another process, or a server does not answer; try again later",
}


def describe() -> dict[str, Any]:
    """The description."""
    info = {"description": "Inspect and operate a node. Times are microseconds since the epoch, UTC."}
    found = document(info, all_endpoints(), _TEXTS, prefix=PREFIX)
    found["components"]["securitySchemes"] = {"basic": {"type": "http", "scheme": "basic"}}
    return found | {"security": [{"basic": []}, {}]}


if __name__ == "__main__":
    write_durably(Path(sys.argv[1]), encode(describe()))
