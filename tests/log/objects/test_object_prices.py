"""The table of requests and prices in the explanation of the log on object storage is what its rules give."""

from __future__ import annotations

from pathlib import Path

from millstream.log import LogSpec
from millstream.log.writing.append_request import make_request
from millstream.log.writing.pending_requests import PendingRequests

PAGE = Path(__file__).parents[3] / "docs" / "explanation" / "object-log.md"
RATES = (10, 1_000, 100_000)
LINGERS = (50, 100, 250)
MONTH = 30 * 86_400
PUT, GET, TERABYTE_MONTH = 5 / 1e6, 0.4 / 1e6, 23.0
MESSAGE_BYTES = 100


def _block_messages() -> int:
    """With how many messages a writer commits at once."""
    request, pending = make_request([bytes(MESSAGE_BYTES)]), PendingRequests(LogSpec("in"), last_id=0, sequence=0)
    while not pending.is_full():
        pending.add(request, 0.0)
    return pending.messages


def _row(rate: int, linger: int, block: int) -> str:
    """A commit follows the linger, which begins with the first message: 1 / rate seconds after the last commit. It
    follows earlier if its messages fill a *block*."""
    messages = min(rate * linger / 1000 + 1, block)
    commits = rate / messages
    requests = commits * MONTH * (PUT + GET)
    terabytes = rate * MONTH * MESSAGE_BYTES / 1e12
    size = MESSAGE_BYTES * messages
    stored = f"{terabytes * 1000:,.1f} GB, {terabytes * TERABYTE_MONTH:,.2f} dollars"
    return f"| {rate:,} | {linger} ms | {commits:.1f} | {size:,.0f} | {requests:,.0f} dollars | {stored} |"


def test_the_prices_of_the_page_follow_from_the_rules_beside_them() -> None:
    table = PAGE.read_text().split("<!-- prices -->\n")[1].split("<!-- end -->")[0]
    block = _block_messages()
    assert table.splitlines()[2:] == [_row(rate, linger, block) for rate in RATES for linger in LINGERS]
