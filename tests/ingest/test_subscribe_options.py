"""The options of a subscription are refused where a broker, or the log, could not take them."""

from __future__ import annotations

import pytest

from millstream.cli.log_sources import MqttIngestRunner
from millstream.ingest import IngestInputError
from millstream.ingest.options import MOST_PAYLOAD, SubscribeOptions
from millstream.ingest.settings import IngestRole


@pytest.mark.parametrize(
    ("option", "value"),
    [("max_payload", 0), ("max_payload", MOST_PAYLOAD + 1), ("expiry", 0), ("expiry", 2**32), ("in_flight", 0)],
)
def test_a_value_out_of_range_is_refused_by_name(option: str, value: int) -> None:
    with pytest.raises(IngestInputError, match=option.replace("_", ".")):
        SubscribeOptions(topics=("a",), **{option: value})  # type: ignore[arg-type]


def test_the_largest_values_are_taken() -> None:
    options = SubscribeOptions(topics=("a",), max_payload=MOST_PAYLOAD, expiry=2**32 - 1)
    assert (options.max_payload, options.expiry) == (63 << 20, 2**32 - 1)


def test_settings_with_a_larger_payload_keep_working() -> None:
    role = IngestRole(url="mqtt://h", topics=("a",), max_payload=64 << 20)  # type: ignore[arg-type]
    assert MqttIngestRunner("a", role)._options.max_payload == MOST_PAYLOAD
