"""Stream, history and service give the same batches of half a million real records, whatever befalls the query (P4)."""

from __future__ import annotations

import random
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import pyarrow as pa
import pytest

from millstream.batching import BatchConfig, Rulebook
from millstream.batching.service import BatchService
from millstream.core.clock import MICROSECONDS, SystemClock
from millstream.core.documents import FileDocument
from millstream.demo.datasets import flights, weather
from millstream.demo.delivery import DeliveryModel, deliver
from millstream.log import LogSpec, open_store
from millstream.pipeline.history import batch_range
from millstream.pipeline.jobs.batch_stream import StreamPlan, run_stream
from millstream.pipeline.planning.log_range import plan_range
from millstream.testing.killed_programs import kill_at
from suite.sizes import sized

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.long, pytest.mark.timeout(3600)]

MINUTE = 60 * MICROSECONDS
RULES = Rulebook(BatchConfig(30 * MINUTE, 20 * MINUTE))
STREAM = Path(__file__).parent / "children" / "stream_batches.py"


@pytest.fixture(scope="module")
def real_log(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, int]:
    """The URL of a store whose log ``real`` holds a year of weather and flights in New York, and how many records:
    some late, some twice. In the small size a few weeks of both."""
    rows = sized(ci=6000, long=None)
    records = pa.concat_tables([weather(rows), flights(rows)])
    messages = deliver(records, DeliveryModel(20 * MINUTE))
    url = f"sqlite:///{tmp_path_factory.mktemp('real') / 'log.db'}"
    with open_store(url) as store, store.log(LogSpec("real")).writer() as writer:
        for batch in messages.to_batches(max_chunksize=50_000):
            writer.append(batch.drop_columns(["id"]))
    return url, len(messages)


@pytest.fixture(scope="module")
def served(real_log: tuple[str, int], tmp_path_factory: pytest.TempPathFactory) -> list[bytes]:
    """What the service in process gives, sorted."""
    url, _ = real_log
    with open_store(url) as store:
        state = tmp_path_factory.mktemp("service") / "state"
        service = BatchService(store.log(LogSpec("real")), store.log(LogSpec("service")), RULES, FileDocument(state))
        service.step()
        service.close()
    return bodies(url, "service")


def bodies(url: str, log: str) -> list[bytes]:
    with open_store(url) as store:
        found = [batch.arrow.column("body").to_pylist() for batch in store.log(LogSpec(log)).read(columns=["body"])]
    return sorted(body for part in found for body in part)


def names(given: list[bytes]) -> list[str]:
    return sorted(name for body in given if (name := msgspec.json.decode(body).get("batch")))


def test_p5_history_gives_the_batches_of_the_service(
    spark: SparkSession, real_log: tuple[str, int], served: list[bytes]
) -> None:
    url, count = real_log
    assert count > (sized(ci=10_000, long=500_000))
    wanted = plan_range(url, "real", None, None, SystemClock())
    rows = batch_range(spark, url, wanted, RULES, flush=False, whole=False)
    found = rows.where("batch is not null").select("batch").toArrow()["batch"].to_pylist()
    assert sorted(found) == names(served)


def test_p5_the_stream_gives_what_the_service_gives_in_triggers_of_any_size(
    spark: SparkSession, real_log: tuple[str, int], served: list[bytes], tmp_path: Path
) -> None:
    url, count = real_log
    draw, least = random.Random(count), sized(ci=6, long=50)
    plan = StreamPlan(
        store_url=url,
        log="real",
        output="stream",
        rules=RULES,
        state=tmp_path / "state",
        shards=draw.randint(1, 4),
        interval=0.0,
    )
    position = 0
    while position < count:
        seen: list[int] = []
        enough = draw.randint(1, 4)
        plan = msgspec.structs.replace(plan, per_trigger=draw.randint(count // least, count // 3))
        done = run_stream(
            spark,
            plan,
            available_now=True,
            stopped=lambda seen=seen, enough=enough: len(seen) >= enough,  # type: ignore[misc]
            on_trigger=lambda trigger, seen=seen: seen.append(trigger.last_id),  # type: ignore[misc]
        )
        position = done.position
    assert bodies(url, "stream") == served


@pytest.mark.crash
def test_p5_a_query_that_is_killed_again_and_again_gives_what_the_service_gives(
    spark: SparkSession, real_log: tuple[str, int], served: list[bytes], tmp_path: Path, size: str
) -> None:
    """Killed between triggers and within them: whenever its output has reached a length drawn at random."""
    if size != "long":
        pytest.skip("long size only: test_batch_stream.py kills a query in the small size")
    url, count = real_log
    draw = random.Random(4)
    plan = StreamPlan(
        store_url=url, log="real", output="killed", rules=RULES, state=tmp_path / "state", shards=3, interval=0.0
    )
    with open_store(url) as store:
        output = store.log(LogSpec("killed"))
        for _ in range(8):
            plan = msgspec.structs.replace(plan, per_trigger=draw.randint(count // 60, count // 20))
            arguments = [str(tmp_path), msgspec.json.encode(plan, enc_hook=str).decode()]
            enough = output.last_id + draw.randrange(1, len(served) // 12)
            reached = lambda enough=enough: output.last_id >= enough  # noqa: E731
            kill_at([sys.executable, STREAM, *arguments], reached, f"{enough} messages", seconds=600)
    run_stream(spark, plan, available_now=True)
    assert bodies(url, "killed") == served
