"""Requests that a registry gets from those who want to see it fail, each with a name."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping

from registry_server import IDENTIFIERS, OPERATIONS

_METHODS = (
    "GET",
    "HEAD",
    "POST",
    "PUT",
    "PATCH",
    "DELETE",
    "OPTIONS",
    "TRACE",
    "CONNECT",
    "PROPFIND",
    "FOO",
    "g e t",
    "",
)
_PATHS = (
    "/", "//", "/%00", "/%ff%fe", "/%2e%2e/%2e%2e/etc/passwd", "/..;/", "*", "http://other.example/healthz",
    "no-slash",
    OPERATIONS, f"{OPERATIONS}/bulk", f"{OPERATIONS}/%2e%2e", f"{OPERATIONS}/" + "x" * 3000, f"{IDENTIFIERS}/",
    f"{IDENTIFIERS}/did:sidetree:", f"{IDENTIFIERS}/did:web:x", f"{IDENTIFIERS}/did:sidetree:%00",
    f"{IDENTIFIERS}/%F0%9F",
    f"{IDENTIFIERS}/did:sidetree:EiA/operations?limit=0", f"{IDENTIFIERS}/did:sidetree:x:" + "e" * 9000,
)  # fmt: skip
_BODIES = (
    b"", b"{", b"null", b"[]", b"[" * 9000, b'{"type":' * 1000, b"\x00" * 100, b"\xff\xfe{\x00}\x00", b'"\\ud800"',
    b'{"type":"create"}', b'{"type":"create","type":"update"}', b'{"type":1e999}', b"1" * 9000,
    b'{"type":"create","delta":[]}',
    b'{"type":"update","didSuffix":null}',
    b'{"type":"create","suffixData":{"deltaHash":"' + b"A" * 5000 + b'"},"delta":{}}',
)  # fmt: skip
_HEADERS = (
    "Content-Length: 1, 1", "Content-Length: +1", "Content-Length: 0x10", "Content-Length: 1e3", "Content-Length: ",
    "Transfer-Encoding: chunked, gzip", "Transfer-Encoding: identity", "Transfer-Encoding: \x0bchunked",
    " Folded: yes",
    "Content-Type: text/plain", "Content-Type: application/x-www-form-urlencoded", "Content-Type: ;;;",
    "Content-Type: ",
    "Content-Type: multipart/form-data; boundary=x", "Content-Type: application/json; charset=utf-16",
    "Content-Type: application/json; charset=" + "x" * 5000, "Content-Encoding: gzip", "Content-Encoding: br, gzip",
    "Expect: 200-ok", "Connection: upgrade", "Upgrade: h2c", "Range: bytes=0-1,1-2", "If-Match: *",
    "Accept: nothing/*",
    "Host: ", "Host: a b", "Cookie: " + "a=b; " * 2000, "X: \x7f", "X: \x00", ": none", "X y: z", "X",
    "Accept-Encoding: " + "z" * 8000,
    "X-Forwarded-For: " + "1.1.1.1, " * 500, "Authorization: Basic !!!", "Origin: null", "Date: never",
    "Via: 1.1 " + "x" * 100,
)  # fmt: skip
_CHUNKS = (
    b"0\r\n", b"zz\r\n", b"-1\r\n{}\r\n", b"ffffffffffffffffff\r\n", b"1\r\n{}\r\n0\r\n\r\n",
    b"2;ext=" + b"a" * 70_000, b"2\n{}\n0\n\n",
    b"2\r\n{}\r\n0\r\nContent-Length: 5\r\n\r\n", b"0002\r\n{}\r\n0\r\n\r\n",
    b"2\r\n{}\r\n0\r\nX: " + b"a" * 70_000, b" 2\r\n{}\r\n0\r\n\r\n",
    b"2 \r\n{}\r\n0\r\n\r\n", b"7fffffff\r\n" + b"{" * 20_000, b"\r\n", b"0x2\r\n{}\r\n0\r\n\r\n", b"",
)  # fmt: skip
_QUERIES = (
    "limit=0", "limit=-1", "limit=1001", "limit=x", "limit=1e2", "limit=" + "9" * 400, "limit=", "limit=1&limit=2",
    "after=-1",
    "after=x", "after=" + "9" * 400, "after=null", "after=%00", "limit=true", "offset=1", "%ff=%ff", "&&&",
    "limit[]=1",
)  # fmt: skip
_LINES = (
    b"GET\r\n\r\n", b"GET /healthz\r\n\r\n", b"GET  /healthz HTTP/1.1\r\n\r\n", b"GET /healthz HTTP/1.1 \r\n\r\n",
    b"/healthz HTTP/1.1\r\n\r\n",
    b"GET /healthz HTTP/1.1.1\r\n\r\n", b"GET /healthz http/1.1\r\n\r\n", b"GET /healthz HTTP/11\r\n\r\n",
    b"GET /healthz HTTP/1.10\r\n\r\n",
    b"GET /healthz XTTP/1.1\r\n\r\n", b"GET\t/healthz\tHTTP/1.1\r\n\r\n", b"\x00" * 50, b"\xff" * 50,
    b"A" * 70_000, b"\x80\x2e\x01\x03\x01",
    b"DESCRIBE / RTSP/1.0\r\n\r\n", b"SOURCE / ICE/1.0\r\n\r\n", b"HELO mail.example\r\n", b"*1\r\n$4\r\nPING\r\n",
    b"GET / HTTP/1.1\r\r\n\r\n",
)  # fmt: skip


def abusive_requests() -> Mapping[str, bytes]:
    """All of them."""
    return dict(itertools.chain(_of_paths(), _of_bodies(), _of_headers(), _of_chunks(), _of_queries(), _of_lines()))


def _of_paths() -> Iterator[tuple[str, bytes]]:
    for method, path in itertools.product(_METHODS, _PATHS):
        yield f"{method} {path[:60]}", f"{method} {path} HTTP/1.1\r\nHost: x\r\n\r\n".encode()


def _of_bodies() -> Iterator[tuple[str, bytes]]:
    for path, (number, body) in itertools.product((OPERATIONS, f"{OPERATIONS}/bulk"), enumerate(_BODIES)):
        yield f"body {number} to {path}", _post(path, f"Content-Length: {len(body)}", body)


def _of_headers() -> Iterator[tuple[str, bytes]]:
    for path, header in itertools.product((OPERATIONS, "/healthz"), _HEADERS):
        yield f"{header[:60]!r} to {path}", _post(path, header, b"{}")


def _of_chunks() -> Iterator[tuple[str, bytes]]:
    for path, (number, chunk) in itertools.product((OPERATIONS, f"{OPERATIONS}/bulk"), enumerate(_CHUNKS)):
        yield f"chunk {number} to {path}", _post(path, "Transfer-Encoding: chunked", chunk)


def _of_queries() -> Iterator[tuple[str, bytes]]:
    did = "did:sidetree:EiDyOQbbZAa3aiRzeCkV7LOx3SERjjH93EXoIM3UoN4oWg"
    for query in _QUERIES:
        yield f"?{query[:60]}", f"GET {IDENTIFIERS}/{did}/operations?{query} HTTP/1.1\r\nHost: x\r\n\r\n".encode()


def _of_lines() -> Iterator[tuple[str, bytes]]:
    for number, line in enumerate(_LINES):
        yield f"line {number}", line


def _post(path: str, header: str, body: bytes) -> bytes:
    return f"POST {path} HTTP/1.1\r\nHost: x\r\n{header}\r\n\r\n".encode("latin-1") + body
