"""Search for everything that has a name."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import chain
from typing import Any
from urllib.parse import quote, urlencode

import msgspec

from millstream.core.cid import is_cid
from millstream.core.errors import MillstreamError
from millstream.log import DATA_KINDS, LogNotFoundError, MessageFilter, search_messages
from millstream.rest.app_context import AppContext
from millstream.rest.endpoint import ApiRequest, EndpointRegistry
from millstream.rest.views.identifiers import registry_of
from millstream.rest.views.message_search import Text, message_logs
from millstream.rest.views.policies import accounts
from millstream.status.snapshot import MANIFEST

endpoints = EndpointRegistry()

MOST_RESULTS = 20
"""Results of one kind."""

ITEM_SECONDS = 1.0
"""How long the spaces are looked through for items, and how long batches are for a part of their ids."""

KEY_MESSAGES = 100_000
"""So many of the newest messages of each log are searched for a key, for at most :data:`ITEM_SECONDS` in all."""

SHORTEST_PART = 4
"""So many characters of the id of a batch, or of an item, are asked for at least."""


class FindQuery(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """``q`` is a name or a part of one."""

    q: Text


class SearchResult(msgspec.Struct, frozen=True):
    """An object whose name equals or contains (``exact`` is false) the searched text, and its page."""

    kind: str
    name: str
    page: str
    detail: str = ""
    exact: bool = True


class SearchedKind(msgspec.Struct, frozen=True):
    """One kind of object that was searched: the searched fields, the number of results, and what was not searched
    (``note``).
    """

    kind: str
    by: str
    found: int
    note: str = ""


class SearchAnswer(msgspec.Struct, frozen=True):
    """All results by kind, and what was searched."""

    q: str
    items: Sequence[SearchResult]
    searched: Sequence[SearchedKind]


@endpoints.get("/search", FindQuery)
def find(app: AppContext, request: ApiRequest[FindQuery, Any]) -> SearchAnswer:
    """Find logs, messages, queues, spaces, items, policies, files, batches, anchors and identifiers by name."""
    text = request.query.q.strip()
    results, searched = list[SearchResult](), list[SearchedKind]()
    for kind, by, look in _LOOKS:
        notes, found = list[str](), list[SearchResult]()
        if look is _keys and any(result.exact for result in results):
            searched.append(SearchedKind(kind, by, 0, "not searched, because something has this name"))
            continue
        try:
            for result in look(app, text, notes.append) if text else ():
                if len(found) == MOST_RESULTS:
                    notes.append(f"only the first {MOST_RESULTS} are shown")
                    break
                found.append(result)
        except MillstreamError as error:
            notes.append(f"{'not all' if found else 'not'} searched: {error}")
        results += found
        searched.append(SearchedKind(kind, by, len(found), "; ".join(notes)))
    return SearchAnswer(text, results, searched)


Note = Callable[[str], object]
Look = Callable[[AppContext, str, Note], Iterator[SearchResult]]


def _logs(app: AppContext, text: str, _note: Note) -> Iterator[SearchResult]:
    for name, kind in _named(app.node.logs.store.kinds(), text):
        yield SearchResult("log", name, f"/logs/{quote(name, safe='')}", kind, exact=name == text)


def _messages(app: AppContext, text: str, _note: Note) -> Iterator[SearchResult]:
    name, _, number = text.rpartition("/")
    digits = number.replace(",", "")
    if name in app.node.logs.store.kinds() and digits.isascii() and digits.isdecimal() and len(digits) < 16:
        log, wanted = app.log(name), int(digits)
        if log.first_id <= wanted <= log.last_id:
            yield SearchResult("message", f"{name}/{wanted}", f"/logs/{quote(name, safe='')}/{wanted}")


def _queues(app: AppContext, text: str, _note: Note) -> Iterator[SearchResult]:
    for name, _ in _named(dict.fromkeys(app.queues.names(), ""), text):
        yield SearchResult("queue", name, f"/queues/{quote(name, safe='')}", exact=name == text)


def _policies(app: AppContext, text: str, _note: Note) -> Iterator[SearchResult]:
    for name, _ in _named(dict.fromkeys(accounts(app), ""), text):
        yield SearchResult("policy", name, f"/policies/{quote(name, safe='')}", exact=name == text)


def _spaces(app: AppContext, text: str, note: Note) -> Iterator[SearchResult]:
    if not app.poller.snapshot.knows(MANIFEST):
        note("not searched: the spaces cannot be read")
        return
    for name, _ in _named(dict.fromkeys(app.poller.snapshot.space_names, ""), text):
        yield SearchResult("space", name, f"/integrity?{urlencode({'text': name})}", exact=name == text)


def _keys(app: AppContext, text: str, note: Note) -> Iterator[SearchResult]:
    """For each log, the first messages with the key *text* among its newest, and the way to all of them."""
    logs = message_logs(app)
    deadline, wanted = app.clock.monotonic() + ITEM_SECONDS, MessageFilter(key=text)
    for number, name in enumerate(logs):
        seconds = deadline - app.clock.monotonic()
        if seconds <= 0:
            note(f"{number:,} of {len(logs):,} logs were searched in {ITEM_SECONDS:g} s")
            return
        try:
            log = app.log(name)
        except LogNotFoundError:  # it was dropped meanwhile
            continue
        first = max(log.first_id, log.last_id - KEY_MESSAGES + 1)
        step = search_messages(log, wanted, first_id=first, limit=1, seconds=seconds, clock=app.clock)
        for message in step.messages:
            page = f"/messages?{urlencode({'log': name, 'key': text})}"
            yield SearchResult("message key", f"{name}/{message.id}", page, f"the first with this key since {first:,}")
        if not step.messages and step.next_id is not None:
            note(f"{name}: searched from {first:,} to {step.last_id:,}")


def _items(app: AppContext, text: str, note: Note) -> Iterator[SearchResult]:
    """Items whose ids begin with *text*, or with what follows ``SPACE/`` in it; where there are none, those whose ids
    have it as a part. Each of them once for all stores."""
    if not app.poller.snapshot.knows(MANIFEST):
        note("items were not searched: the spaces cannot be read")
        return
    told, deadline = set[tuple[str, str]](), app.clock.monotonic() + ITEM_SECONDS
    pairs = [(one.store, one.space) for one in app.poller.snapshot.spaces]
    pairs.sort(key=lambda pair: (not text.startswith(f"{pair[1]}/"), pair))
    for number, (store, space) in enumerate(pairs):
        if app.clock.monotonic() > deadline:
            note(f"{number:,} of {len(pairs):,} spaces were searched in {ITEM_SECONDS:g} s")
            return
        for prefix in dict.fromkeys((text.removeprefix(f"{space}/"), text)):
            rows = app.node.stores.manifest.starting_with(store, space, prefix, limit=MOST_RESULTS + 1)
            for row in rows if prefix else ():
                if (space, row.content_id) not in told:
                    told.add((space, row.content_id))
                    detail, exact = "deleted" if row.deleted else "", row.content_id == prefix
                    yield SearchResult(
                        "item", f"{space}/{row.content_id}", _item_page(space, row.content_id), detail, exact
                    )
    if not told and len(text) >= SHORTEST_PART:
        yield from _items_with_part(app, text, note)


def _items_with_part(app: AppContext, text: str, note: Note) -> Iterator[SearchResult]:
    deadline, searched, fits = app.clock.monotonic() + ITEM_SECONDS, 0, _part(text)
    told = set[tuple[str, str]]()
    for one in app.poller.snapshot.spaces:
        for columns in app.node.stores.manifest.scan_columns(one.store, one.space):
            for content_id in filter(fits, columns.keys):
                if (one.space, content_id) not in told:
                    told.add((one.space, content_id))
                    page = _item_page(one.space, content_id)
                    yield SearchResult("item", f"{one.space}/{content_id}", page, exact=False)
            searched += len(columns.keys)
            if app.clock.monotonic() > deadline:
                note(f"for a part of an id, {searched:,} copies were searched in {ITEM_SECONDS:g} s")
                return


def _item_page(space: str, content_id: str) -> str:
    return f"/integrity/item?{urlencode({'space': space, 'content_id': content_id})}"


def _batches(app: AppContext, text: str, note: Note) -> Iterator[SearchResult]:
    """The batch with the id *text*, or those with a part of it, such as ``2bc9befec2…5375``, as pages show ids."""
    journal, index = app.batches, app.node.anchoring.observer.index

    def result(log: str, batch: str) -> SearchResult:
        page = f"/batches/one?{urlencode({'log': log, 'batch': batch})}"
        return SearchResult("batch", batch, page, f"of {log}", exact=batch == text)

    for log, kind in app.node.logs.store.kinds().items():
        if kind in DATA_KINDS and (journal.batch(log, text) or index.find_batch(log, text)):
            yield result(log, text)
            return
    if len(text) < SHORTEST_PART or not set(text.lower()) <= set("0123456789abcdef….") or not text[0].isalnum():
        return
    fits = _part(text.lower())
    deadline, searched, told = app.clock.monotonic() + ITEM_SECONDS, 0, set[tuple[str, str]]()
    for log, names in chain(journal.names(), index.names()):
        for name in names:
            if fits(name) and (log, name) not in told:
                told.add((log, name))
                yield result(log, name)
        searched += len(names)
        if app.clock.monotonic() > deadline:
            note(f"for a part of an id, the last {searched:,} batches were searched in {ITEM_SECONDS:g} s")
            return


def _part(text: str) -> Callable[[str], bool]:
    """Whether a name has the part *text*; with ``…`` in it, as pages cut long names, its beginning and its end."""
    first, cut, last = text.replace("...", "…").partition("…")
    if cut and first:
        return lambda name: name.startswith(first) and name.endswith(last) and len(name) > len(first) + len(last)
    return lambda name: text in name


def _anchors(app: AppContext, text: str, _note: Note) -> Iterator[SearchResult]:
    digits = text.replace(",", "")
    if digits.isascii() and digits.isdecimal() and 1 <= int(digits[:16]) <= app.node.anchoring.ledger.last_number:
        yield SearchResult("anchor", digits, f"/anchors/{int(digits)}")


def _files(app: AppContext, text: str, _note: Note) -> Iterator[SearchResult]:
    if is_cid(text) and app.node.anchoring.cas.has(text):
        yield SearchResult("file", text, f"/files/{text}")


def _identifiers(app: AppContext, text: str, _note: Note) -> Iterator[SearchResult]:
    if text.startswith("did:") and registry_of(app).history.resolve(text) is not None:
        yield SearchResult("DID", text, f"/identifiers?{urlencode({'did': text})}")


def _named(things: Any, text: str) -> Iterator[tuple[str, str]]:
    """Those of *things* (what is told of each, by its name) whose name is *text*, then those whose name contains it."""
    folded = text.casefold()
    names = [name for name in sorted(things) if folded in name.casefold()]
    names.sort(key=lambda name: name != text)
    for name in names:
        yield name, things[name]


_LOOKS: Sequence[tuple[str, str, Look]] = (
    ("log", "name, or a part of it", _logs),
    ("message", "log/id", _messages),
    ("queue", "name, or a part of it", _queues),
    ("space", "name, or a part of it", _spaces),
    ("item", "id or a part of it, also space/id", _items),
    ("policy", "account, or a part of its name", _policies),
    ("batch", f"id, or {SHORTEST_PART} or more of its characters", _batches),
    ("anchor", "number", _anchors),
    ("file", "whole CID", _files),
    ("DID", "whole DID", _identifiers),
    ("message key", f"whole key; the newest {KEY_MESSAGES:,} messages of each log", _keys),
)
