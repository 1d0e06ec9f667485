"""Reading from web servers that lie, dawdle, break off, and send one elsewhere."""

from __future__ import annotations

import errno
import re
import socket
from typing import Any

import pytest

from millstream.anchoring import http_reader
from millstream.anchoring.errors import HttpError
from millstream.anchoring.http_reader import HttpReader, UrlError, _redirected, check_url, redacted_url


def read(url: str, *, seconds: float = 20.0) -> bytes:
    with HttpReader(seconds=seconds).open(url) as answer:
        return b"".join(answer.chunks())


def test_an_answer_is_read_with_its_status_and_headers(web: Any) -> None:
    web.answers["/one"] = b"first\nsecond\nthird"
    with HttpReader().open(f"{web.url}/one") as answer:
        assert (answer.status, answer.length) == (200, 18)
        assert b"".join(answer.chunks()) == b"first\nsecond\nthird"


def test_a_bounded_answer_is_read_whole_or_refused_without_the_secrets_of_its_url(web: Any) -> None:
    web.answers["/one?token=secret"] = web.answers["/one"] = b"x" * 300_000
    with HttpReader().open(f"{web.url}/one") as answer:
        assert answer.read(300_000) == b"x" * 300_000
    with (
        HttpReader().open(f"{web.url}/one?token=secret") as answer,
        pytest.raises(HttpError, match="the response has more than 299,999 bytes") as refused,
    ):
        answer.read(299_999)
    assert "secret" not in str(refused.value) and f"{web.url}/one" in str(refused.value)


def test_redirects_are_followed_a_few_times_and_no_more(web: Any, other_web: Any) -> None:
    web.answers["/a"] = moved_to(f"{other_web.url}/b")
    other_web.answers["/b"] = moved_to("/c")
    other_web.answers["/c"] = b"found"
    assert read(f"{web.url}/a") == b"found"
    web.answers["/loop"] = moved_to("/loop")
    with pytest.raises(HttpError, match="more than 5 times"):
        read(f"{web.url}/loop")
    assert web.asked.count("/loop") == 6


def test_a_server_of_the_internet_redirects_to_no_address_of_this_machine(
    web: Any, other_web: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    public = web.url.rpartition(":")[2]
    monkeypatch.setattr(http_reader, "_is_public", lambda connection: str(connection.getpeername()[1]) == public)
    web.answers["/a"] = moved_to(f"{other_web.url}/metadata?key=secret")
    web.answers["/b"] = moved_to("/c")
    web.answers["/c"] = other_web.answers["/metadata"] = b"found"
    other_web.answers["/d"] = moved_to("/metadata")
    with pytest.raises(HttpError, match=f"redirects to {other_web.url}/metadata, which is an address of this machine"):
        read(f"{web.url}/a")
    assert other_web.asked == []
    assert read(f"{web.url}/b") == read(f"{other_web.url}/d") == b"found"


@pytest.mark.parametrize(
    ("address", "is_public"),
    [
        ("8.8.8.8", True),
        ("2606:4700::1", True),
        ("169.254.169.254", False),
        ("10.1.2.3", False),
        ("fe80::1%eth0", False),
    ],
)
def test_addresses_of_the_internet_are_told_from_others(address: str, is_public: bool) -> None:
    class Connected:
        def getpeername(self) -> tuple[str, int]:
            return address, 80

    assert http_reader._is_public(Connected()) is is_public  # type: ignore[arg-type]


@pytest.mark.parametrize("target", ["file:///etc/passwd", "ftp://127.0.0.1/x", "gopher://x", "http://["])
def test_a_redirect_leads_to_no_other_scheme(web: Any, target: str) -> None:
    web.answers["/a"] = moved_to(target)
    with pytest.raises(HttpError, match=rf"redirects to an invalid URL '{re.escape(target)}': give the final"):
        read(f"{web.url}/a")


@pytest.mark.parametrize(
    ("target", "shown"),
    [
        ("user:secret@b.example", "'b.example'"),
        ("//user:secret@[b.example", "'[b.example'"),
        ("https://user:secret@b.example/x?token=secret", "'https://b.example/x'"),
    ],
)
def test_the_error_of_a_redirect_shows_no_credentials(target: str, shown: str) -> None:
    with pytest.raises(HttpError, match=rf"redirects to an invalid URL {re.escape(shown)}: give") as refused:
        _redirected("https://a.example/x", target)
    assert "secret" not in str(refused.value)


def test_a_redirect_never_gives_up_encryption() -> None:
    assert _redirected("https://a.example/x", "https://b.example/y") == "https://b.example/y"
    with pytest.raises(HttpError, match="from https to http"):
        _redirected("https://a.example/x", "http://a.example/x")


def test_a_connection_that_is_reset_at_once_is_an_error_of_its_server(
    web: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def reset(_: socket.socket) -> bool:
        raise OSError(errno.ENOTCONN, "Transport endpoint is not connected")

    monkeypatch.setattr(http_reader, "_is_public", reset)
    with pytest.raises(HttpError, match="not connected"):
        read(web.url)


def test_an_answer_that_drips_is_cut_off_though_no_single_wait_is_long(web: Any) -> None:
    def drip(handler: Any) -> None:
        handler.send_response(200)
        handler.end_headers()
        while not web.ended.wait(0.02):
            handler.wfile.write(b".")

    web.answers["/slow"] = drip
    with pytest.raises(HttpError, match="too slow"):
        read(f"{web.url}/slow", seconds=0.3)


def test_headers_that_drip_are_cut_off(web: Any) -> None:
    def drip(handler: Any) -> None:
        handler.wfile.write(b"HTTP/1.1 200 OK\r\n")
        while not web.ended.wait(0.02):
            handler.wfile.write(b"X: y\r\n"[: 1 + len(web.asked) % 6])

    web.answers["/slow"] = drip
    with pytest.raises(HttpError, match="too slow"):
        read(f"{web.url}/slow", seconds=0.3)


def test_a_server_that_says_nothing_is_given_up(web: Any) -> None:
    web.answers["/mute"] = lambda _handler: web.ended.wait(60)
    with pytest.raises(HttpError, match="too slow"):
        read(f"{web.url}/mute", seconds=0.2)


def test_an_answer_that_breaks_off_is_no_answer(web: Any) -> None:
    def broken(handler: Any) -> None:
        handler.send_response(200)
        handler.send_header("Content-Length", "100")
        handler.end_headers()
        handler.wfile.write(b"only this")

    web.answers["/half"] = broken
    with pytest.raises(HttpError, match="closed the connection before the end"):
        read(f"{web.url}/half")


@pytest.mark.parametrize(
    "bytes_", [b"", b"nonsense\r\n\r\n", b"HTTP/1.1 abc\r\n\r\n", b"\x00" * 100, b"HTTP/1.1 200 OK\r\n" + b"x" * 70_000]
)
def test_what_is_no_http_is_an_error_and_no_crash(web: Any, bytes_: bytes) -> None:
    web.answers["/x"] = lambda handler: handler.wfile.write(bytes_)
    with pytest.raises(HttpError) as error:
        read(f"{web.url}/x")
    assert str(error.value).isprintable(), "what a stranger sends is never printed as it is"


def test_a_server_that_is_not_there_is_named_without_its_query() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    with pytest.raises(HttpError, match=rf"http://127.0.0.1:{port}/x: ") as error:
        read(f"http://127.0.0.1:{port}/x?token=secret")
    assert "secret" not in str(error.value)


@pytest.mark.parametrize(
    "url",
    [
        "ftp://host/x",
        "http://",
        "https:///x",
        "http://user:secret@host/",
        "http://host/#part",
        "http://ho st/x",
        "http://host/\u00e9",
        "http://host:99999/",
    ],
)
def test_other_urls_are_refused(url: str) -> None:
    with pytest.raises(UrlError) as error:
        check_url(url)
    assert "secret" not in str(error.value)


def test_what_is_shown_of_a_url_has_no_secret() -> None:
    assert redacted_url("https://user:secret@host/path?token=secret#x") == "https://host/path"


def moved_to(target: str) -> Any:
    def answer(handler: Any) -> None:
        handler.send_response(302)
        handler.send_header("Location", target)
        handler.send_header("Content-Length", "0")
        handler.end_headers()

    return answer
