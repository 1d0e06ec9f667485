"""Batches that somebody has written by hand: files with odd, damaged or hostile contents under names that fit."""

from __future__ import annotations

import gzip
import json
import random
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from reference.implementation import Files

from millstream.core.cid import cid_of

VERDICTS = json.loads((Path(__file__).parents[1] / "sidetree/vectors/verdicts.json").read_text())
_CID = re.compile(r"baf[a-z2-7]+")
TOKENS = (
    "{", "}", "[", "]", ",", ":", '"', " ", "\n", "\\", "\\u005c", "\\ud800", "\\u0041", "null", "true", "1", "-",
    "1e+21", "1e21", "1e-7", "1.5", "9007199254740993", "0x1F", '""', "{}", "[]", "é", "😀", "\x01",
)  # fmt: skip
_VALUES: Sequence[Any] = (
    None, True, 0, -0.0, 1.5, 2**53 + 1, 1e21, 1e-7, "", "x", "😀", [], [None], {}, {"a": None}, ["a", "b", "c"], [[]],
    "EgEA", "EiDiQ7gPVNT_yjsUNSJHgH6pRj4KQfyynm_KtI9DtnultR", {"toJSON": 1, "b": 2, "a": {"d": 1, "c": 2}}, "http:x",
)  # fmt: skip


def changed(files: Files, pick: random.Random) -> Files:
    """*files* after one change or two, under names that fit their bytes."""
    texts = {cid_of(data): gzip.decompress(data).decode() for data in files.contents}
    packed = dict(zip(texts, files.contents, strict=True))
    for _ in range(pick.choice([1, 1, 1, 2])):
        name = pick.choice(list(texts))
        texts[name] = _changed_text(texts[name], pick)
        packed[name] = b""
    count, _, uri = files.anchor.partition(".")
    anchor = f"{pick.choice([count, count, count, str(int(count) + 1), '1'])}.{uri}"
    return _renamed(anchor, texts, packed, lambda text: _packed(text, pick))


def _changed_text(text: str, pick: random.Random) -> str:
    if pick.random() < 0.25:
        for _ in range(pick.randint(1, 2)):
            at = pick.randint(0, len(text))
            text = text[:at] + pick.choice(TOKENS) + text[at + pick.choice([0, 0, 1]) :]
        return text
    try:
        value = json.loads(text)
    except ValueError:
        return text
    if pick.random() < 0.4 and isinstance(value, dict) and isinstance(value.get("deltas"), list) and value["deltas"]:
        value["deltas"][pick.randrange(len(value["deltas"]))] = pick.choice(VERDICTS)["delta"]
    else:
        _change_inside(value, pick)
    return json.dumps(value, ensure_ascii=pick.random() < 0.3)


def _change_inside(value: Any, pick: random.Random) -> None:
    """Change something somewhere in *value*, deeper rather than not."""
    places = list(value) if isinstance(value, dict) else list(range(len(value))) if isinstance(value, list) else []
    if not places:
        return
    place = pick.choice(places)
    if isinstance(value[place], dict | list) and value[place] and pick.random() < 0.8:
        _change_inside(value[place], pick)
    elif isinstance(value[place], str) and value[place].count(".") == 2:
        value[place] = _changed_jws(value[place], pick)
    else:
        _change_here(value, place, pick)


def _change_here(value: Any, place: Any, pick: random.Random) -> None:
    kind = pick.random()
    if kind < 0.3:
        del value[place]
    elif kind < 0.5 and isinstance(value, list):
        value.insert(place, pick.choice([*value, *_VALUES]))
    elif kind < 0.7 and isinstance(value, dict):
        _inherit(value, place, pick)
    elif kind < 0.8 and isinstance(value, dict):
        value[pick.choice(["x", "type", "operations", "ids", "toJSON"])] = pick.choice(_VALUES)
    else:
        value[place] = pick.choice(_VALUES)


def _inherit(value: dict[str, Any], place: str, pick: random.Random) -> None:
    """Move a member of *value* into its prototype, or give it another one; or let *place* inherit from what it was."""
    kind = pick.random()
    if kind < 0.4:
        value["__proto__"] = {place: value.pop(place)}
    elif kind < 0.5:
        value["__proto__"] = {place: pick.choice(_VALUES)}
    elif kind < 0.6:
        value["__proto__"] = pick.choice(_VALUES)
    else:
        value[place] = {"__proto__": value[place], **pick.choice([{}, {}, {"x": 1}, {"length": 1}, {"slice": 1}])}


def _changed_jws(text: str, pick: random.Random) -> str:
    """Another spelling of a signature, one that does not hold, or no JWS."""
    at = pick.choice([len(text) - 1, pick.randrange(len(text))])
    return text[:at] + pick.choice("AQgwB-_.=+/é") + text[at + pick.choice([0, 1, 1]) :]


def renamed(anchor: str, texts: dict[str, str]) -> Files:
    """The files of *texts*, by their old names, with the names inside them in step."""
    return _renamed(anchor, texts, dict.fromkeys(texts, b""), lambda text: gzip.compress(text, mtime=0))


def _renamed(anchor: str, texts: dict[str, str], packed: dict[str, bytes], pack: Callable[[bytes], bytes]) -> Files:
    """A file that is named is packed before the one that names it; *packed* has those that need not be packed anew."""
    names = dict[str, str]()

    def name_of(old: str) -> str:
        if old not in names:
            names[old] = old
            text = _CID.sub(lambda found: name_of(found[0]) if found[0] in texts else found[0], texts[old])
            if text != texts[old] or not packed[old]:
                packed[old] = pack(text.encode("utf-8", "surrogatepass"))
            names[old] = cid_of(packed[old])
        return names[old]

    count, _, uri = anchor.partition(".")
    return Files(f"{count}.{name_of(uri)}", [packed[name] for name in texts])


def _packed(text: bytes, pick: random.Random) -> bytes:
    half = len(text) // 2
    return pick.choice([
        lambda: gzip.compress(text),
        lambda: gzip.compress(text),
        lambda: gzip.compress(text[:half]) + gzip.compress(text[half:]),
        lambda: gzip.compress(text) + b"\0\0\0",
        lambda: gzip.compress(text) + pick.choice([b"x", b"\x1f\x8b", b"\0x"]),
        lambda: gzip.compress(text.replace(b'"', b' "', 3)),
    ])()  # fmt: skip
