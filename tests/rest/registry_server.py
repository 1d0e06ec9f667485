"""The registry over HTTP, in a process of its own."""

from __future__ import annotations

import http.client
import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from millstream.core.canonical import canonical_json

OPERATIONS, IDENTIFIERS = "/sidetree/v1/operations", "/sidetree/v1/identifiers"


class Api:
    """A real instance in a process of its own."""

    def __init__(self, folder: Path, http: Mapping[str, str] | None = None, **settings: str) -> None:
        given = {f"MILLSTREAM_REGISTRY__{name.upper()}": text for name, text in settings.items()}
        given |= {f"MILLSTREAM_HTTP__{name.upper()}": text for name, text in (http or {}).items()}
        environment = {**os.environ, **given}
        command = [
            sys.executable,
            "-m",
            "millstream",
            "anchor",
            "serve",
            "--data",
            str(folder),
            "--http",
            "127.0.0.1:0",
        ]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, env=environment, text=True)
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        self.port = int(line.rpartition(":")[2])

    def ask(
        self, method: str, path: str, body: bytes | None = None, headers: Mapping[str, str] | None = None
    ) -> tuple[int, Any, dict[str, str]]:
        """Status, body (parsed) and headers of one request; a body is sent as JSON unless *headers* say otherwise."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)
        try:
            typed = (
                {} if body is None else {"Content-Type": "application/jsonl" if "/bulk" in path else "application/json"}
            )
            connection.request(method, path, body, typed if headers is None else dict(headers))
            response = connection.getresponse()
            data = response.read()
            kind = response.headers.get("content-type", "")
            value = [json.loads(line) for line in data.splitlines()] if "jsonl" in kind else json.loads(data)
            return response.status, value, {name.lower(): text for name, text in response.headers.items()}
        finally:
            connection.close()

    def submit(self, operation: Any) -> tuple[int, Any, dict[str, str]]:
        return self.ask("POST", OPERATIONS, canonical_json(operation.request))

    def end(self, signal_: int = signal.SIGTERM) -> int:
        self.process.send_signal(signal_)
        code = self.process.wait(60)
        assert self.process.stdout is not None
        self.process.stdout.close()
        return code
