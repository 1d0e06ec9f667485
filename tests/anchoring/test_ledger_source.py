"""Ledgers of others: chains and plain lists, in files and over HTTP; what is broken in them is named."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import msgspec
import pytest

from millstream.anchoring import ledger_source as module
from millstream.anchoring.errors import LedgerError, LedgerFormatError, LedgerUnavailableError
from millstream.anchoring.ledger import LedgerEntry, encode_entry, next_entry
from millstream.anchoring.ledger_source import NODE_LEDGER, FileLedger, LedgerPage, NodeLedger, WebLedger, open_ledger
from millstream.core.cid import cid_of
from millstream.core.errors import InputError


def chain(count: int) -> list[LedgerEntry]:
    entries: list[LedgerEntry] = []
    for number in range(1, count + 1):
        head = entries[-1] if entries else None
        entries.append(next_entry(head, f"{number}.{cid_of(b'%d' % number)}", number * 1_000_000))
    return entries


def lines(entries: Sequence[LedgerEntry]) -> bytes:
    return b"".join(encode_entry(entry) + b"\n" for entry in entries)


def plain(entries: Sequence[LedgerEntry]) -> bytes:
    return b"".join(
        msgspec.json.encode({"number": e.number, "time": e.time, "anchor_string": e.anchor_string}) + b"\n"
        for e in entries
    )


def written(tmp_path: Path, data: bytes) -> FileLedger:
    (tmp_path / "ledger.jsonl").write_bytes(data)
    return FileLedger(tmp_path / "ledger.jsonl")


def read(source: Any, after: int = 0) -> list[LedgerEntry]:
    with source.reading(after) as entries:
        return list(entries or ())


@pytest.mark.parametrize(
    "data", [lines(chain(3)), b"\xef\xbb\xbf" + lines(chain(3)), lines(chain(3)).replace(b"\n", b"\r\n\n")]
)
def test_a_chain_is_read_from_a_file(tmp_path: Path, data: bytes) -> None:
    source = written(tmp_path, data)
    assert read(source) == chain(3)
    assert source.is_chain is True
    assert open_ledger((tmp_path / "ledger.jsonl").as_uri()).name == source.name


def test_a_part_of_a_chain_may_begin_anywhere(tmp_path: Path) -> None:
    assert read(written(tmp_path, lines(chain(5)[2:]))) == chain(5)[2:]


def test_a_plain_list_gets_the_hashes_that_a_chain_has(tmp_path: Path) -> None:
    source = written(tmp_path, plain(chain(3)))
    assert read(source) == chain(3)
    assert source.is_chain is False


def test_the_numbers_of_a_plain_list_may_leave_some_out_and_times_go_back(tmp_path: Path) -> None:
    data = b"".join(
        json.dumps({"anchor_string": "1.x", "number": number, "time": time}).encode() + b"\n"
        for number, time in [(2_576_980_377_600_000, 600_000), (2_576_980_377_600_007, 599_999)]
    )
    assert [entry.number for entry in read(written(tmp_path, data))] == [2_576_980_377_600_000, 2_576_980_377_600_007]


def _changed(entries: list[LedgerEntry], at: int, **change: Any) -> bytes:
    entries[at] = msgspec.structs.replace(entries[at], **change)
    return lines(entries)


@pytest.mark.parametrize(
    ("data", "error", "text"),
    [
        (
            _changed(chain(3), 1, anchor_string="9.x"),
            LedgerError,
            r"jsonl: ledger entry 2 was changed.* get the",
        ),
        (_changed(chain(3), 1, number=7), LedgerError, "entry 7 does not follow entry 1"),
        (_changed(chain(3), 1, time=-5), LedgerError, "entry 2"),
        (lines([*chain(3), chain(3)[2]]), LedgerError, "entry 3 does not follow entry 3"),
        (lines(chain(3)[::2]), LedgerError, "entry 3 does not follow entry 1"),
        (lines(chain(1)) + plain(chain(2)[1:]), LedgerError, "entry 2 .* has no hash.*get the ledger again"),
        (plain(chain(1)) + lines(chain(2)[1:]), LedgerError, "entry 2 .* has a hash.*get the ledger again"),
        (plain([chain(2)[1], chain(2)[0]]), LedgerError, "entry 1 .* does not follow entry 2"),
        (b'{"number":0,"time":1,"anchor_string":"1.x"}\n', LedgerError, "entry 0"),
        (b'{"number":9007199254740993,"time":1,"anchor_string":"1.x"}\n', LedgerError, "entry 9007199254740993"),
        (b'{"number":1,"time":99999999999999999999,"anchor_string":"1.x"}\n', LedgerError, "ledger|entry"),
        (b'{"number":true,"time":1,"anchor_string":"1.x"}\n', LedgerFormatError, "ledger.jsonl:1"),
        (b'{"number":1,"time":1,"anchor_string":"\\ud800"}\n', LedgerError, "ledger|entry"),
        (b'{"number":1,"time":1,"anchor_string":"1.x","fee":1}\n', LedgerFormatError, "ledger.jsonl:1"),
        (b"<html>no ledger</html>\n", LedgerFormatError, "ledger.jsonl:1"),
        (b"[" * 5000, LedgerFormatError, "ledger|entry"),
        (lines(chain(1)) + b"{}\n", LedgerFormatError, "ledger.jsonl:2"),
        (lines(chain(1)) + b"\xff\xff\n", LedgerFormatError, "ledger.jsonl:2"),
        (b"x" * 20_000, LedgerFormatError, "a line of more than"),
        (lines(chain(1)) + b" " * 20_000, LedgerFormatError, "a line of more than"),
    ],
)
def test_what_is_wrong_in_a_ledger_is_named(tmp_path: Path, data: bytes, error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        read(written(tmp_path, data))


def test_a_line_that_is_still_being_written_is_left_for_the_next_time(tmp_path: Path) -> None:
    whole = lines(chain(3))
    for length in range(len(lines(chain(2))), len(whole)):
        assert len(read(written(tmp_path, whole[:length]))) in (2, 3)
    assert read(written(tmp_path, whole[:-1])) == chain(3), "an entry without the end of its line is an entry"


def test_a_file_that_did_not_change_is_not_read_again(tmp_path: Path) -> None:
    source = written(tmp_path, lines(chain(2)))
    read(source)
    source.settled()
    with source.reading(0) as entries:
        assert entries is None
    written(tmp_path, lines(chain(3)))
    assert len(read(source)) == 3


def test_what_comes_after_an_entry_is_counted_without_being_read(tmp_path: Path) -> None:
    source = written(tmp_path, lines(chain(9)))
    with source.reading(0) as entries:
        assert entries is not None
        next(entries)
        assert source.remaining() == 8


def test_a_file_that_is_not_there_or_a_folder_is_unavailable(tmp_path: Path) -> None:
    for path in (tmp_path / "nowhere", tmp_path):
        with pytest.raises(LedgerUnavailableError, match=r"cannot read the ledger .*; check the path and its"):
            read(FileLedger(path))


def test_lines_are_read_from_a_web_server_and_not_again_while_they_are_the_same(web: Any) -> None:
    def answer(handler: Any) -> None:
        body = lines(chain(3))
        same = handler.headers["If-None-Match"] == '"v1"'
        handler.send_response(304 if same else 200)
        handler.send_header("ETag", '"v1"')
        handler.send_header("Content-Length", "0" if same else str(len(body)))
        handler.end_headers()
        handler.wfile.write(b"" if same else body)

    web.answers["/ledger.jsonl"] = answer
    source = open_ledger(f"{web.url}/ledger.jsonl")
    assert isinstance(source, WebLedger)
    assert read(source) == chain(3)
    source.settled()
    with source.reading(0) as entries:
        assert entries is None


def test_an_answer_that_breaks_off_is_no_shorter_ledger(web: Any) -> None:
    def broken(handler: Any) -> None:
        handler.send_response(200)
        handler.send_header("Content-Length", "10000")
        handler.end_headers()
        handler.wfile.write(lines(chain(3)))

    web.answers["/x"] = broken
    with pytest.raises(LedgerUnavailableError, match="closed the connection before the end"):
        read(open_ledger(f"{web.url}/x"))
    web.answers["/x"] = 503
    with pytest.raises(LedgerUnavailableError, match="status 503"):
        read(open_ledger(f"{web.url}/x"))


def test_entries_are_taken_as_slowly_as_one_likes(web: Any) -> None:
    """Their files are fetched in between: the server of the ledger must not be kept waiting for that."""
    web.answers["/x"] = lines(chain(300))
    source = open_ledger(f"{web.url}/x", seconds=0.2)
    with source.reading(0) as entries:
        assert entries is not None
        next(entries)
        assert len(list(entries)) == 299


def test_a_ledger_without_end_does_not_fill_the_disk(web: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_BYTES", 1_000_000)

    def flood(handler: Any) -> None:
        handler.send_response(200)
        handler.end_headers()
        while True:
            handler.wfile.write(b"\n" * 65_536)

    web.answers["/x"] = flood
    with pytest.raises(LedgerFormatError, match="has more than"):
        read(open_ledger(f"{web.url}/x"))


def serve_pages(web: Any, entries: Sequence[LedgerEntry], size: int = 2) -> None:
    def page(path: str) -> bytes:
        asked = parse_qs(urlsplit(path).query)
        after = int(asked["after"][0])
        items = list(entries[after : after + size])
        more = bool(items) and items[-1].number < len(entries)
        return msgspec.json.encode(LedgerPage(items, str(items[-1].number) if more else None, len(entries)))

    web.fallback = page


@pytest.mark.parametrize("path", ["", "/", NODE_LEDGER, f"/below{NODE_LEDGER}"])
def test_a_node_is_read_page_by_page_from_where_one_is(web: Any, path: str) -> None:
    serve_pages(web, chain(7))
    source = open_ledger(web.url + path)
    assert isinstance(source, NodeLedger)
    assert read(source) == chain(7)
    assert read(source, after=5) == chain(7)[4:]
    with source.reading(3) as entries:
        assert entries is not None
        next(entries)
        assert source.remaining() == 4


@pytest.mark.parametrize(
    "answer",
    [
        b"",
        b"{}",
        b"[]",
        b"<html>",
        b'{"items":[1]}',
        b'{"items":[],"total":"x"}',
        b"x" * 9_000_000,
        b'{"items":[],"total":18446744073709551615}',
        b'{"items":[],"total":-1}',
    ],
    ids=["nothing", "no page", "a list", "a page of text", "numbers", "total", "long", "huge total", "negative total"],
)
def test_what_is_no_page_is_refused(web: Any, answer: bytes) -> None:
    web.fallback = lambda _path: answer
    with pytest.raises(LedgerFormatError):
        read(open_ledger(web.url))


def test_a_node_that_sends_the_same_page_for_ever_is_found_out(web: Any) -> None:
    page = msgspec.json.encode(LedgerPage(chain(2), "2", 1_000_000))
    web.fallback = lambda _path: page
    with pytest.raises(LedgerError, match="entry 1 does not follow entry 2"):
        read(open_ledger(web.url))


def test_other_ledgers_are_refused() -> None:
    for text in ("ftp://x/y", "sqlite:///x", "", "http://", "file://elsewhere/x"):
        with pytest.raises(InputError):
            open_ledger(text)
