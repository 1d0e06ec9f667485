"""A publisher for tests: everything is the broker's when it returns."""

from __future__ import annotations

import secrets
import ssl
from collections.abc import Iterable

from millstream.ingest.broker_url import parse_broker

_SECONDS = 60.0


def publish(
    url: str,
    messages: Iterable[tuple[str, bytes]],
    qos: int = 1,
    *,
    retain: bool = False,
    tls: ssl.SSLContext | None = None,
) -> None:
    """Publish *messages* (topic and payload) at the broker of *url* in order, and wait until it has taken them.

    Raises :class:`AssertionError` where it has not after a minute.
    """
    import paho.mqtt.client as paho
    from paho.mqtt.enums import CallbackAPIVersion

    place = parse_broker(url)
    client = f"millstream-test-{secrets.token_hex(6)}"  # a broker throws out whoever has the name of a newcomer
    publisher = paho.Client(CallbackAPIVersion.VERSION2, client, protocol=paho.MQTTv5)
    publisher.max_inflight_messages_set(500)
    publisher.max_queued_messages_set(0)
    if place.user:
        publisher.username_pw_set(place.user, place.password)
    if tls is not None:
        publisher.tls_set_context(tls)
    publisher.connect(place.host, place.port)
    publisher.loop_start()
    try:
        for sent in [publisher.publish(topic, payload, qos, retain) for topic, payload in messages]:
            sent.wait_for_publish(_SECONDS)
            assert sent.is_published(), f"the broker has not taken message {sent.mid} in {_SECONDS:g} seconds"
    finally:
        publisher.disconnect()
        publisher.loop_stop()
