"""The format of numbers, sizes and times on pages."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from markupsafe import Markup, escape

from millstream.core.amounts import counted
from millstream.core.clock import MICROSECONDS
from millstream.core.timestamps import format_timestamp

_GLIMPSE = 150
"""Signs of a closed tree that are shown beside it."""

_DEEPEST = 50
"""Levels of a tree; of what is below, only the beginning is shown."""

_UNITS = ((86_400 * 365, "y"), (86_400, "d"), (3600, "h"), (60, "min"), (1, "s"))


def number(value: float | None) -> str:
    """``12,345``; a dash where there is nothing."""
    if value is None:
        return "–"
    return f"{value:,.1f}" if isinstance(value, float) and value != int(value) else f"{int(value):,}"


def brief(value: float | None) -> str:
    """A large number in a few signs: ``553 k``, ``1.2 M``; small ones as they are."""
    if value is None:
        return "–"
    for limit, unit in ((1e9, "G"), (1e6, "M"), (1e5, "k")):
        if abs(value) >= limit:
            scaled = value / (1e3 if unit == "k" else limit)
            return f"{scaled:,.0f} {unit}" if scaled >= 100 else f"{scaled:,.1f} {unit}"
    return number(value)


def size(value: float | None) -> str:
    """Bytes: ``35.2 MB``."""
    if value is None:
        return "–"
    for unit in ("B", "kB", "MB", "GB", "TB"):
        if value < 1000:
            return f"{value:.0f} {unit}" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1000
    return f"{value:.1f} PB"


def percent(share: float | None) -> str:
    """``99.9 %``; never rounded up to all of it."""
    if share is None:
        return "–"
    if share in (0, 1):
        return f"{share:.0%}".replace("%", " %")
    return f"{min(99.99, share * 100):.4g} %"


def rate(value: float) -> str:
    """A number a second or a minute: more digits where it is small."""
    return number(round(value)) if value >= 10 else f"{value:.1f}"


def when(at: int | None, now: int) -> Markup:
    """A time in UTC with how long ago that was; a dash for no time, the bare number for one that no calendar has."""

    def write(exact: str) -> Markup:
        short = exact[:19].replace("T", " ")
        return Markup('<time datetime="{}" title="{} · {} µs">{}</time> <span class=ago>{}</span>').format(
            exact, exact, at, short, ago(at, now)
        )

    return _dated(at, write)


def since(at: int | None, now: int) -> Markup:
    """How long ago a time was, with the time itself as its title."""
    return _dated(
        at, lambda exact: Markup('<time datetime="{}" title="{}">{}</time>').format(exact, exact, ago(at, now))
    )


def ago(at: int | None, now: int) -> str:
    """``3 min ago``, ``in 2 h``."""
    if at is None:
        return "never"
    seconds = abs(now - at) // MICROSECONDS
    if seconds < 1:
        return "now"
    length = span(seconds)
    return f"{length} ago" if at <= now else f"in {length}"


def span(seconds: float) -> str:
    """A length of time in its largest unit, two where that is small: ``3 min``, ``1 d 4 h``."""
    left, parts = int(seconds), list[str]()
    for length, unit in _UNITS:
        count, left = divmod(left, length)
        if count:
            parts.append(f"{count} {unit}")
            if count >= 10 or len(parts) == 2:
                break
        elif parts:
            break
    return " ".join(parts) or "0 s"


def length_of(seconds: float) -> str:
    """How long something took or lasts: ``850 ms``, ``12.5 s``, ``3 min``."""
    if 0 < seconds < 1:
        return f"{seconds * 1000:.0f} ms"
    return f"{seconds:.1f} s".replace(".0 ", " ") if seconds < 60 else span(seconds)


def short(text: str | None, keep: int = 10) -> Markup:
    """A hash or another long name, cut in the middle; the whole of it is its title."""
    if not text:
        return Markup("<span class=none>–</span>")
    if len(text) <= 2 * keep + 1:
        return Markup("<code>{}</code>").format(text)
    return Markup('<code title="{}">{}…{}</code>').format(text, text[:keep], text[-4:])


def ticks(text: str) -> Markup:
    """*text*, with what stands between backticks as code."""
    parts = text.split("`")
    return Markup("").join(Markup("<code>{}</code>").format(p) if n % 2 else escape(p) for n, p in enumerate(parts))


def tree(value: Any, *, open_to: int = 1, depth: int = 0) -> Markup:
    """A JSON value as a tree that opens and closes without a script."""
    if isinstance(value, dict | list) and value and depth < _DEEPEST:
        pairs = value.items() if isinstance(value, dict) else enumerate(value)
        shown = [
            Markup("<li><span class=key>{}</span>{}</li>").format(key, tree(each, open_to=open_to, depth=depth + 1))
            for key, each in list(pairs)[:500]
        ]
        kind = counted(len(value), *(("member", "members") if isinstance(value, dict) else ("item", "items")))
        opened, glimpse = Markup(" open"), Markup("")
        if depth >= open_to:
            opened, glimpse = Markup(""), Markup(" <code class=glimpse>{}</code>").format(_glimpse(value))
        return Markup("<details class=tree{}><summary>{}{}</summary><ul>{}</ul></details>").format(
            opened, kind, glimpse, Markup("").join(shown)
        )
    text = _glimpse(value) if isinstance(value, dict | list) else json.dumps(value, ensure_ascii=False)
    return Markup("<code class=leaf>{}</code>").format(text)


def _glimpse(value: Any) -> str:
    """The beginning of *value* as JSON. The rest is not written: it may be long, or deeper than can be written."""
    text = ""
    for part in json.JSONEncoder(ensure_ascii=False).iterencode(value):
        text += part
        if len(text) > _GLIMPSE:
            return f"{text[: _GLIMPSE - 1]}…"
    return text


def _dated(at: int | None, write: Callable[[str], Markup]) -> Markup:
    """What *write* makes of the time *at* in ISO 8601; a dash for no time, the bare number for one of no calendar."""
    if at is None:
        return Markup("<span class=none>–</span>")
    try:
        exact = format_timestamp(at)
    except OverflowError:
        return Markup("<span>{}</span>").format(at)
    return write(exact)
