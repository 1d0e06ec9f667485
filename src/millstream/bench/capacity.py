"""What a node needs for a load: database, stored bytes, requests, processor time, machines and price.

``python -m millstream.bench.capacity`` prints the tables of ``docs/scale.md``. Each constant was measured, and says
where; ``tests/bench/test_capacity.py`` measures bytes a row and requests an object again, on real servers.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import NamedTuple

import msgspec

DAY, MONTH_DAYS, MONTH_HOURS = 86_400, 30, 730
USED_SHARE = 0.5
"""How much of its processor time a machine gives to this work: the rest is for peaks and for the loss of one."""


class Measured(NamedTuple):
    """A measured constant: its value, its unit, and what measured it."""

    value: float
    unit: str
    source: str


_SIZES = "python -m millstream.bench.pipeline_sizes"
_ROWS = "tests/bench/test_capacity.py (ids of 14 bytes)"
_REQUESTS = "tests/bench/test_capacity.py (Swift)"
_SECONDS = "seconds of "
_MILL = "millstream bench mill (local disk)"
LOG_BYTES = Measured(55, "bytes per message in the log, for bodies of 100 bytes", _SIZES)
FILE_BYTES = Measured(229, "bytes per message in batch files, with nine messages per batch", _SIZES)
INDEX_BYTES = Measured(43, "bytes per message in the node's database", _SIZES)
FILE_MESSAGES = Measured(17_500, "messages per batch file", _SIZES)
MANIFEST_BYTES = Measured(262, "bytes per row of the manifest with its indexes, PostgreSQL", _ROWS)
AUDIT_BYTES = Measured(248, "bytes per row of the audit log with its indexes, PostgreSQL", _ROWS)
BIT_BYTES = Measured(354, "bytes per row of the bit log with its index, PostgreSQL", _ROWS)
PUT_REQUESTS = Measured(2, "requests per stored object (HEAD, PUT)", _REQUESTS)
COPY_REQUESTS = Measured(3, "requests per copy, with the record of its source (GET, HEAD, PUT)", _REQUESTS)
CHECK_REQUESTS = Measured(1, "requests per check of a copy of at most 1 MiB (GET)", _REQUESTS)
MESSAGE_SECONDS = Measured(
    20.5e-6, "seconds of processor time per message, from the log to its anchor", "millstream bench pipeline"
)
COPY_SECONDS = Measured(157e-6, "seconds of processor time per copy of a small object", _MILL)
CHECK_SECONDS = Measured(37e-6, "seconds of processor time per check of a small object", _MILL)
COPY_BYTE_SECONDS = Measured(3.86e-9, "seconds of processor time per copied byte", _MILL)
CHECK_BYTE_SECONDS = Measured(0.638e-9, "seconds of processor time per checked byte", _MILL)
"""Those of the mill are ``CPU µs/file`` of Millstream in the section mill of ``docs/benchmarks.md``: of small files,
and of large ones divided by their size (128 MiB)."""
CONSTANTS: Mapping[str, Measured] = {name: value for name, value in globals().items() if isinstance(value, Measured)}


class Workload(msgspec.Struct, frozen=True, kw_only=True):
    """What arrives in a day, and how long it stays. *copies* counts the first one; each is checked in *check_days*."""

    messages: float = 0
    objects: float = 0
    object_bytes: float = 1e6
    copies: int = 2
    days: float = 365
    check_days: float = 30


class Prices(msgspec.Struct, frozen=True, kw_only=True):
    """Prices in one currency; those by default are placeholders. A machine has *cores*."""

    gb_month: float = 0.02
    database_gb_month: float = 0.10
    thousand_requests: float = 0.001
    machine_hour: float = 0.10
    cores: int = 2


class Capacity(msgspec.Struct, frozen=True, kw_only=True):
    """What a workload needs on its last day, after which as much is removed as arrives. Bytes are without replicas of
    a database server, and ``stored_bytes`` are those of logs, batch files and all copies."""

    database_bytes: float
    stored_bytes: float
    requests_a_day: float
    processor_seconds_a_day: float
    machines: int
    price_a_month: float


def capacity(workload: Workload, prices: Prices | None = None) -> Capacity:
    """What *workload* needs."""
    load, cost = workload, prices or Prices()
    messages, objects = load.messages * load.days, load.objects * load.days
    files = load.messages / FILE_MESSAGES.value
    new, kept = load.objects + files, objects + files * load.days
    checks = kept * load.copies / load.check_days
    file_bytes = messages * FILE_BYTES.value
    row_bytes = load.copies * (MANIFEST_BYTES.value + AUDIT_BYTES.value + BIT_BYTES.value)
    database_bytes = messages * INDEX_BYTES.value + kept * row_bytes
    kept_bytes = objects * load.object_bytes + file_bytes
    stored_bytes = messages * LOG_BYTES.value + load.copies * kept_bytes
    copied = load.copies - 1
    requests = new * (PUT_REQUESTS.value + copied * COPY_REQUESTS.value) + checks * (CHECK_REQUESTS.value + 0.001)
    seconds = (
        load.messages * MESSAGE_SECONDS.value
        + copied * new * COPY_SECONDS.value
        + copied * kept_bytes / load.days * COPY_BYTE_SECONDS.value
        + checks * CHECK_SECONDS.value
        + load.copies * kept_bytes / load.check_days * CHECK_BYTE_SECONDS.value
    )
    machines = max(1, math.ceil(seconds / (DAY * cost.cores * USED_SHARE)))
    price = (
        stored_bytes / 1e9 * cost.gb_month
        + database_bytes / 1e9 * cost.database_gb_month
        + requests * MONTH_DAYS / 1000 * cost.thousand_requests
        + machines * MONTH_HOURS * cost.machine_hour
    )
    return Capacity(
        database_bytes=database_bytes, stored_bytes=stored_bytes, requests_a_day=requests,
        processor_seconds_a_day=seconds, machines=machines, price_a_month=price,
    )  # fmt: skip


WORKLOADS = {
    "10⁶ messages per day": Workload(messages=1e6),
    "10⁹ messages per year": Workload(messages=1e9 / 365),
    "10¹² messages per year": Workload(messages=1e12 / 365),
    "10⁴ objects of 1 MB per day": Workload(objects=1e4),
    "10⁹ objects of 100 kB per year": Workload(objects=1e9 / 365, object_bytes=1e5),
    "10¹² objects of 100 kB per year": Workload(objects=1e12 / 365, object_bytes=1e5),
}
"""The rows of the table in ``docs/scale.md``."""


def tables() -> Iterator[str]:
    """The lines of the tables."""
    yield (
        "| load, kept for a year | database | stored | requests per day | processor time per day | machines "
        "| price per month |"
    )
    yield "|---|---:|---:|---:|---:|---:|---:|"
    for name, workload in WORKLOADS.items():
        need = capacity(workload)
        yield (
            f"| {name} | {need.database_bytes / 1e9:,.0f} GB | {need.stored_bytes / 1e12:,.1f} TB "
            f"| {need.requests_a_day:,.0f} | {_time(need.processor_seconds_a_day)} | {need.machines:,} "
            f"| {need.price_a_month:,.0f} |"
        )
    yield ""
    yield "| constant | value | meaning | measured by |"
    yield "|---|---:|---|---|"
    for name, constant in CONSTANTS.items():
        yield f"| `{name}` | {_value(constant)} | {constant.unit.removeprefix(_SECONDS)} | `{constant.source}` |"


def _time(seconds: float) -> str:
    return f"{seconds:,.0f} s" if seconds < 3600 else f"{seconds / 3600:,.1f} h"


def _value(constant: Measured) -> str:
    """Its value; a small one in seconds in a unit that makes it readable."""
    if not constant.unit.startswith(_SECONDS):
        return f"{constant.value:,g}"
    return f"{constant.value * 1e6:.4g} µs" if constant.value > 1e-6 else f"{constant.value * 1e9:.3g} ns"


if __name__ == "__main__":
    print("\n".join(tables()))
