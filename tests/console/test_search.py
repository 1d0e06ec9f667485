"""Search: what was searched and how far is always said, and "nothing found" too."""

from __future__ import annotations

import html
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from chromium import Watched, expect
from in_process import AskedInProcess, asked_in_process
from world import DAMAGED, Served, did, serving

from millstream.log import LogSpec, Message, open_store


@pytest.fixture(scope="module")
def node(furnished: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[AskedInProcess]:
    import shutil

    folder = Path(shutil.copytree(furnished, tmp_path_factory.mktemp("search") / "node"))
    with asked_in_process(folder) as asked:
        yield asked


def found(node: AskedInProcess, text: str) -> list[tuple[str, str, bool]]:
    """Kind, name and exactness of each result."""
    return [(row["kind"], row["name"], row["exact"]) for row in node.api(f"/search?q={quote(text)}")["items"]]


def test_each_kind_of_thing_is_found_by_its_name(node: AskedInProcess) -> None:
    batch = node.api("/batches")["items"][0]["batch"]
    cid = node.api("/anchors/2/files")["items"][0]["cid"]
    for kind, name in (
        ("log", "weather"), ("message", "weather/7"), ("queue", "duplication-high"), ("space", "photos"),
        ("policy", "local"), ("batch", batch), ("anchor", "2"), ("file", cid), ("DID", did()),
    ):  # fmt: skip
        assert (kind, name, True) in found(node, name)
    assert found(node, DAMAGED) == [("item", f"photos/{DAMAGED}", True)] == found(node, f"photos/{DAMAGED}")
    assert found(node, DAMAGED[:-3]) == [("item", f"photos/{DAMAGED}", False)]
    assert ("queue", "duplication-low", False) in found(node, "DUPLICATION")


def test_a_batch_and_an_item_are_found_by_a_part_of_their_id(node: AskedInProcess) -> None:
    batches = [row["batch"] for row in node.api("/batches?limit=100")["items"]]
    whole = batches[-1]  # of the first anchor
    for part in (
        whole[:10],
        whole[20:32],
        whole[:10].upper(),
        f"{whole[:10]}…{whole[-4:]}",
        f"{whole[:6]}...{whole[-6:]}",
    ):
        assert found(node, part) == [("batch", whole, False)], part
    assert found(node, batches[0][:12]) == [("batch", batches[0], False)]  # waits for its anchor
    assert f">{whole}</a>" in node.page(f"/find?q={whole[:10]}")
    assert found(node, f"{whole[:10]}…0000") == found(node, whole[:3]) == []
    assert found(node, "photo-03") == [("item", f"photos/{DAMAGED}", False)]


def test_a_search_for_the_only_thing_of_a_name_leads_to_its_page(node: AskedInProcess) -> None:
    for text in ("weather/7", "duplication-low", DAMAGED, did()):
        assert node.ask("GET", f"/find?q={quote(text)}")[0] == 303
    assert "contains the text" in node.page("/find?q=duplication")


def test_a_key_is_found_in_all_logs_unless_something_has_this_name(node: AskedInProcess) -> None:
    key = node.api("/logs/weather/messages?limit=1")["items"][0]["key"]
    first = f"weather/{node.api(f'/logs/weather/search?key={quote(key)}&limit=1')['items'][0]['id']}"
    (row,) = node.api(f"/search?q={quote(key)}")["items"]
    assert (row["kind"], row["name"], row["page"]) == ("message key", first, f"/messages?log=weather&key={key}")
    for log, log_key in (("x-a", key), ("x-b", key), ("x-c", "other")):
        with node.node.logs.store.log(LogSpec(log)).writer() as writer:
            writer.append([Message(b"x", key="before"), Message(b"x", key=log_key)])
    names = [name for kind, name, _ in found(node, key) if kind == "message key"]
    assert names == [first, "x-a/2", "x-b/2"]
    assert ("log", "x-a", True) in found(node, "x-a")
    notes = {each["kind"]: each["note"] for each in node.api("/search?q=x-a")["searched"]}
    assert notes["message key"] == "not searched, because something has this name"


@pytest.mark.parametrize("text", ["no such thing", "weather/999999", "999999", "did:sidetree:nobody", "weather/x"])
def test_nothing_found_is_said_with_what_was_searched(node: AskedInProcess, text: str) -> None:
    answer = node.api(f"/search?q={quote(text)}")
    assert answer["items"] == []
    assert [row["kind"] for row in answer["searched"]] == [
        "log", "message", "queue", "space", "item", "policy", "batch", "anchor", "file", "DID",
        "message key",
    ]  # fmt: skip
    page = node.page(f"/find?q={quote(text)}")
    assert f"Nothing found for <code>{text}</code>" in page and "What was searched" in page
    assert f"/messages?log=weather&amp;key={quote(text, safe='').replace('%20', '+')}" in page


def test_messages_are_searched_in_steps_that_a_cursor_continues(node: AskedInProcess) -> None:
    first = node.api("/logs/weather/messages?first=1")["items"][0]
    seen, cursor = list[int](), ""
    while True:
        answer = node.api(f"/logs/weather/search?key={quote(first['key'])}&limit=7{cursor}")
        seen += [row["id"] for row in answer["items"]]
        assert len(answer["items"]) <= 7 and answer["searched_to"] <= answer["last_id"]
        if answer["next"] is None:
            break
        cursor = f"&first={answer['next']}&last={answer['last_id']}"
    every = [
        row for row in node.api("/logs/weather/messages?first=1&limit=1000")["items"] if row["key"] == first["key"]
    ]
    assert seen == [row["id"] for row in every] and answer["searched_to"] == answer["last_id"]


@pytest.mark.parametrize(
    ("query", "message"),
    [
        ("", "give at least one of key, source, header, text, since and until"),
        ("value=1", "without the name of the header"),
        ("text=", "text"),
        ("since=7&until=7", "its end must be after its beginning"),
        ("key=k&limit=5000", "limit"),
        ("key=k&time=lunch", "time"),
    ],
)
def test_a_search_that_cannot_be_done_is_refused(node: AskedInProcess, query: str, message: str) -> None:
    status, text = node.ask("GET", f"/api/v1/logs/weather/search?{query}")
    assert status == 400 and message in text
    assert node.ask("GET", "/api/v1/logs/nothing/search?key=k")[0] == 404


def test_the_page_says_which_ids_were_searched(node: AskedInProcess) -> None:
    page = node.page("/messages?log=weather&text=no+such+text")
    assert re.search(r"Searched ids 1 to ([\d,]+) of \1: nothing found\.", page)
    assert "go-on" not in page
    page = node.page("/messages?log=weather&key=&since=noon")
    assert "nvalid time &#39;noon&#39;: write 2026-11-22 03:04:05" in page
    assert "Fill in at least one field." in node.page("/messages?log=weather&key=")
    page = node.page("/messages?log=weather&since=1970-01-01")
    assert re.search(r"Searched ids 1 to [\d,]+ of [\d,]+: 50 messages found so far\.", page)
    (onward,) = re.findall(r'rel="next" href="(/messages[^"]+)"', page)
    page = node.page(onward.replace("&amp;", "&"))
    assert re.search(r"Searched ids 1 to [\d,]+ of [\d,]+: (100|\d\d) messages found", page)


def test_all_logs_are_searched_in_turn(node: AskedInProcess) -> None:
    for log in ("aaa", "zzz"):
        with node.node.logs.store.log(LogSpec(log)).writer() as writer:
            writer.append([Message(b"{}", key="needle")])
    path, pages = "/messages?log=&key=needle", list[str]()
    while path:
        pages.append(node.page(path))
        found = re.search(r'<a rel="next" href="([^"]+)"', pages[-1])
        path = html.unescape(found[1]) if found else ""
    ways = [re.findall(r'<a href="(/logs/\w+/\d+)"', page) for page in pages]
    assert [way for each in ways for way in each] == ["/logs/aaa/1", "/logs/zzz/1"]
    assert "so far" in pages[0] and "so far" not in pages[-1] and "2 messages found in all." in pages[-1]
    count = len(pages)
    assert f"Log {count} of {count}, zzz: searched ids 1 to 1 of 1" in pages[-1]


def test_programs_search_all_logs_with_one_cursor(node: AskedInProcess) -> None:
    for log in ("first", "last"):
        with node.node.logs.store.log(LogSpec(log)).writer() as writer:
            writer.append([Message(b"{}", key=key) for key in ("pin", "x", "pin")])
    found, cursor, requests = list[str](), "", 0
    while True:
        answer = node.api(f"/search/messages?key=pin&limit=1{cursor}")
        found += [f"{step['log']}/{row['id']}" for step in answer["steps"] for row in step["items"]]
        requests += 1
        if answer["next"] is None:
            break
        cursor = f"&first={answer['next']}"
    assert found == ["first/1", "first/3", "last/1", "last/3"] and requests >= 4
    answer = node.api("/search/messages?key=pin")
    assert (answer["next"], answer["found"], len(answer["steps"])) == (None, 4, answer["logs"])
    after = node.api("/search/messages?key=pin&first=g/7")  # a log that is gone: those behind it
    assert [step["log"] for step in after["steps"] if step["items"]] == ["last"]
    assert "/api/v1/search/messages?key=pin" in node.page("/messages?log=&key=pin")


@pytest.mark.parametrize(
    ("query", "message"),
    [("", "give at least one of key"), ("key=k&first=weather", "first"), ("key=k&first=weather/0", "first")],
)
def test_a_search_in_all_logs_that_cannot_be_done_is_refused(node: AskedInProcess, query: str, message: str) -> None:
    status, text = node.ask("GET", f"/api/v1/search/messages?{query}")
    assert status == 400 and message in text


def test_a_search_continues_by_itself_and_stops_at_a_click(furnished: Path, tmp_path: Path, watched: Watched) -> None:
    import shutil

    folder = Path(shutil.copytree(furnished, tmp_path / "node"))
    with open_store(f"sqlite:///{folder}/log.db") as store, store.log(LogSpec("long")).writer() as writer:
        for number in range(20):
            writer.append([Message(b"x" * 4_000, key=f"k{number}")] * 1_000)  # 80 MB of bodies: two steps
    with serving(folder) as served:
        page = watched.page(f"{served.url}/messages?log=long&text=y")
        expect(page.locator("#progress")).to_have_text("Searched ids 1 to 20,000 of 20,000: nothing found.")
        expect(page.locator(".go-on")).to_have_count(0)
        assert watched.complaints == []
        stopping(page, served)


def stopping(page: Any, served: Served) -> None:
    """A search whose next step never answers is stopped; the link to continue stays."""
    page.route(re.compile("first="), lambda _route: None)
    page.goto(f"{served.url}/messages?log=long&text=y")
    page.get_by_role("button", name="Stop").click()
    expect(page.get_by_role("button", name="Stop")).to_be_hidden()
    expect(page.locator("#progress")).to_contain_text("nothing found so far")
    expect(page.get_by_role("link", name="Continue")).to_be_visible()
