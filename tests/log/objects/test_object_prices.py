"""The table of requests and prices in the explanation of the log on object storage is what its rules give."""

from __future__ import annotations

from pathlib import Path

PAGE = Path(__file__).parents[3] / "docs" / "explanation" / "object-log.md"
RATES = (10, 1_000, 100_000)
LINGERS = (50, 100, 250)
MONTH = 30 * 86_400
PUT, GET, TERABYTE_MONTH = 5 / 1e6, 0.4 / 1e6, 23.0
MESSAGE_BYTES = 100


def _row(rate: int, linger: int) -> str:
    """A commit follows the linger, which begins with the first message: 1 / rate seconds after the last commit."""
    commits = 1 / (linger / 1000 + 1 / rate)
    requests = commits * MONTH * (PUT + GET)
    terabytes = rate * MONTH * MESSAGE_BYTES / 1e12
    size = max(MESSAGE_BYTES * rate / commits, MESSAGE_BYTES)
    stored = f"{terabytes * 1000:,.1f} GB, {terabytes * TERABYTE_MONTH:,.2f} dollars"
    return f"| {rate:,} | {linger} ms | {commits:.1f} | {size:,.0f} | {requests:,.0f} dollars | {stored} |"


def test_the_prices_of_the_page_follow_from_the_rules_beside_them() -> None:
    table = PAGE.read_text().split("<!-- prices -->\n")[1].split("<!-- end -->")[0]
    assert table.splitlines()[2:] == [_row(rate, linger) for rate in RATES for linger in LINGERS]
