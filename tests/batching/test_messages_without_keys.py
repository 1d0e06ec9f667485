"""A message without a key repeats nothing but its own copies: it ends no batch and contradicts no other message."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from millstream.batching import BatchConfig, Batcher
from millstream.batching.column_state import EVENT_SCHEMA
from millstream.batching.message_columns import event_columns
from millstream.batching.message_events import event_from_message
from millstream.core.message import Message, to_arrow

MESSAGES = st.lists(
    st.builds(
        lambda body, key, source, at, delay: Message(body, key, source, at, at + delay),
        st.sampled_from([b"", b"on", b"off"]),
        st.sampled_from(["", "", "k"]),
        st.sampled_from(["", "pump"]),
        st.integers(-40, 40),
        st.integers(0, 20),
    ),
    max_size=30,
)


def numbered(messages):
    return [Message(m.body, m.key, m.source, m.event_time, m.received_at, id=n) for n, m in enumerate(messages, 1)]


@given(MESSAGES)
def test_one_message_and_a_column_of_messages_are_the_same_events(messages):
    events = [event_from_message(message) for message in numbered(messages)]
    rows = event_columns(to_arrow(numbered(messages))).to_pylist()
    assert rows == [{name: getattr(event, name) for name in EVENT_SCHEMA.names} for event in events]


@given(MESSAGES, st.sampled_from(["order-free", "faithful"]))
def test_all_that_came_in_time_are_in_batches_but_for_copies(messages, mode):
    plain = numbered([message for message in messages if not message.key])
    events = sorted((event_from_message(message) for message in plain), key=lambda event: (event.received_at, event.id))
    batcher = Batcher.of(BatchConfig(50, 20, mode=mode))
    outcomes = [batcher.receive_many(events), batcher.flush()]
    batched = {number for outcome in outcomes for batch in outcome.batches for number in batch.events}
    rejects = [reject for outcome in outcomes for reject in outcome.rejects]
    assert len({(m.source, m.event_time, m.body) for m in plain}) == len(batched) == len(plain) - len(rejects)
    assert {reject.reason for reject in rejects} <= {"duplicate"}
    assert {batch.cut for outcome in outcomes for batch in outcome.batches} <= {"window", "neighbour", "flush"}
