"""The recipes of the page of the data source, run one after the other with another store."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from millstream.core.message import Message
from millstream.log import LogSpec, open_store
from millstream.pipeline.stream_progress import StreamLag, stream_lag

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PAGE = (Path(__file__).parents[2] / "docs" / "how-to" / "spark-data-source.md").read_text("utf-8")
DAY = 1_795_392_000_000_000
"""Midnight of 23 November 2026, in microseconds."""


@pytest.mark.spark
def test_the_recipes_of_the_page_run_one_after_the_other(
    spark: SparkSession, log_url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with open_store(log_url) as store, store.log(LogSpec("weather", block_messages=10)).writer() as writer:
        writer.append(
            [
                Message(b'{"temp": %d}' % (30 + number), "k", "JFK" if number % 3 else "LGA", DAY, DAY + number)
                for number in range(-5, 25)
            ]
        )
    spark.createDataFrame([("JFK", "Kennedy")], "station string, name string").write.parquet(f"{tmp_path}/stations")
    recipes = re.findall(r"```python\n(.*?)```", PAGE.partition("## Recipes")[2], re.DOTALL)
    assert len(recipes) == 5
    names: dict[str, Any] = {"spark": spark}
    for recipe in recipes:
        own = recipe.replace("mysql://reader@db.example/logs", log_url).replace(
            "s3://bucket/staging", tmp_path.as_uri()
        )
        exec(own.replace("/data", str(tmp_path)), names)
    shown = capsys.readouterr().out
    assert "|   JFK|   16|" in shown
    assert "Kennedy" in shown
    assert spark.read.parquet(f"{tmp_path}/weather").count() == 30
    with open_store(log_url) as store:
        assert [m.id for batch in store.log(LogSpec("weather-jfk")).read() for m in batch] == [*range(1, 21)]
        assert next(m.body for batch in store.log(LogSpec("alerts")).read() for m in batch) == b'{"temp":41.0}'
    read = [each for each in names["query"].recentProgress if each["numInputRows"]]
    lag = stream_lag(read[-1], log_url, "weather")
    assert lag == StreamLag(read_messages=30, read_bytes=lag.read_bytes, lag_messages=0, lag_bytes=0)
    assert lag.read_bytes > 300
