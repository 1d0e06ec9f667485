"""The connection to a broker: paho-mqtt, with the order of receipt that durable ingest needs.

paho sends the PUBREC of a message under QoS 2 as soon as it has it in memory; the broker then forgets the message, and
a process that dies loses it. Here nothing is acknowledged until :meth:`MqttConnection.confirm` says it is stored. The
acknowledgements of many messages go out as one write, and bytes are taken from the socket in large pieces.
"""

from __future__ import annotations

import socket
import ssl
import struct
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import msgspec
import paho.mqtt.client as paho
from paho.mqtt.enums import CallbackAPIVersion, MQTTErrorCode, MQTTProtocolVersion
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties
from paho.mqtt.reasoncodes import ReasonCode
from paho.mqtt.subscribeoptions import SubscribeOptions as PahoSubscribeOptions

from millstream.core.clock import Clock
from millstream.core.tls_files import KeyPairError, load_key_pair, openssl_reason
from millstream.ingest.broker_url import BrokerAddress
from millstream.ingest.errors import BrokerRefusedError, BrokerUnavailableError, IngestInputError, SessionTakenError
from millstream.ingest.options import SubscribeOptions
from millstream.ingest.publish_packet import decode_publish
from millstream.ingest.received_message import ReceivedMessage

_ACK = struct.Struct("!BBH")
_PUBACK, _PUBREC, _PUBCOMP = 0x40, 0x50, 0x70
_READ_BYTES = 1 << 18
_GROUP_BYTES = 8 << 20
_MOST = 1 << 16  # messages that may come before the answer to a request
_HEAD_BYTES = 70_000  # the most that a packet holds besides its payload: a topic of 64 KiB, and properties
_CLOSE_SECONDS = 5.0
_TAKEN_OVER = 0x8E
_EXPIRED, _OTHER_HOST = 10, {62, 64}  # X509_V_ERR_CERT_HAS_EXPIRED, …_HOSTNAME_MISMATCH, …_IP_ADDRESS_MISMATCH
_BUSY = {0x88, 0x89, 0x97, 0x9F}  # server unavailable, busy, over quota, too many connections: try again
_REMEDIES = {
    0x84: "select another version with --protocol",
    0x85: "select another client id with --client-id",
    0x86: "correct the user and the password in the URL",
    0x87: "check the user and the password in the URL, and the access rules of the broker",
}
"""What to do about a refusal, by the reason code of MQTT 5."""


class PollResult(msgspec.Struct, frozen=True):
    """Received packets: messages, and identifiers under QoS 2 that the broker releases."""

    arrivals: list[ReceivedMessage]
    released: list[int]

    def __bool__(self) -> bool:
        return bool(self.arrivals or self.released)


class MqttConnection:
    """One connection after another in the session of *client*; use it in one thread, and :meth:`close` it."""

    def __init__(self, place: BrokerAddress, client: str, options: SubscribeOptions, clock: Clock) -> None:
        self._place, self._options, self._clock = place, options, clock
        self._paho = _PahoClient(place, client, options)

    @property
    def is_open(self) -> bool:
        """Whether the broker has let us in and the connection stands, as far as is known."""
        return self._paho.connected

    def open(self) -> bool:
        """Connect; True where the broker has kept our session.

        Raises :class:`BrokerUnavailableError`, :class:`BrokerRefusedError`.
        """
        self._paho.begin()
        try:
            self._paho.reconnect()
        except ssl.SSLCertVerificationError as error:
            raise BrokerRefusedError(_certificate_refused(self._place.url, error)) from error
        except (OSError, ValueError) as error:
            raise BrokerUnavailableError(
                f"cannot reach {self._place.url}: {getattr(error, 'strerror', None) or error}; check the host and the "
                "port, and that the broker runs"
            ) from error
        self._await("CONNECT", lambda: self._paho.welcome is not None)
        assert self._paho.welcome is not None
        code, session_present = self._paho.welcome
        if code.is_failure:
            kind = BrokerUnavailableError if code.value in _BUSY else BrokerRefusedError
            todo = _REMEDIES.get(code.value, "the log of the broker may have the reason")
            raise kind(f"{self._place.url} refused the connection: {code}; {todo}")
        return session_present

    def subscribe(self, wanted: Mapping[str, int], known: Mapping[str, int]) -> None:
        """Let *wanted* topics, with their QoS, be what is subscribed, where *known* ones are.

        Raises :class:`BrokerRefusedError` where the broker grants less, :class:`BrokerUnavailableError`.
        """
        if gone := [topic for topic in known if topic not in wanted]:
            self._unsubscribe(gone)
        fresh = {topic: qos for topic, qos in wanted.items() if known.get(topic) != qos}
        if not fresh:
            return
        self._paho.granted.clear()
        self._paho.subscribe([(topic, self._subscription(qos)) for topic, qos in fresh.items()])
        self._await("SUBSCRIBE", lambda: bool(self._paho.granted))
        for (topic, qos), code in zip(fresh.items(), self._paho.granted, strict=True):
            if code.is_failure:
                raise BrokerRefusedError(
                    f"{self._place.url} refused the subscription to {topic!r} ({code}): allow this user to read the "
                    "topic in the access rules of the broker, or subscribe to other topics"
                )
            if code.value < qos:
                raise BrokerRefusedError(
                    f"{self._place.url} grants QoS {code.value} for {topic!r}, not {qos}: use --qos "
                    f"{code.value}, or allow QoS {qos} in the broker"
                )

    def _unsubscribe(self, topics: Sequence[str]) -> None:
        self._paho.ended.clear()
        self._paho.unsubscribe(list(topics))
        self._await("UNSUBSCRIBE", lambda: bool(self._paho.ended))
        for topic, code in zip(topics, self._paho.ended, strict=False):  # MQTT 3.1.1 has no codes
            if code is not None and code.is_failure:
                raise BrokerRefusedError(
                    f"{self._place.url} refused to end the subscription to {topic!r} ({code}): allow this user to end "
                    "it in the access rules of the broker. With another client id (--client-id) the messages that the "
                    "broker still keeps for this one are lost"
                )

    def poll(self, seconds: float, most: int) -> PollResult:
        """What has come, once something has or *seconds* are over: no more than *most* messages.

        What a lost connection delivered before it was lost is returned first, unless the broker sends it again. Raises
        :class:`BrokerUnavailableError`.
        """
        client = self._paho
        code: MQTTErrorCode = MQTTErrorCode.MQTT_ERR_SUCCESS
        if not client.arrivals and not client.released and not client.has_bytes:
            code = client.loop(seconds)  # it looks at the socket alone, not at what was read ahead
        if code == MQTTErrorCode.MQTT_ERR_SUCCESS:
            code = client.drain(most)
        if client.want_write():
            client.loop_write()
        if code == MQTTErrorCode.MQTT_ERR_SUCCESS:
            code = client.loop_misc()
        intake = client.take(most)
        if not intake and not client.connected:
            self._refuse_rival(client.lost)
            raise BrokerUnavailableError(f"the connection to {self._place.url} was lost: {client.lost or code.name}")
        return intake

    def confirm(self, arrivals: Iterable[ReceivedMessage], released: Iterable[int]) -> None:
        """Acknowledge *arrivals* and *released*; a connection that was lost meanwhile is no error here."""
        acks = [_ACK.pack(_PUBACK if a.qos == 1 else _PUBREC, 2, a.packet) for a in arrivals if a.qos]
        acks += [_ACK.pack(_PUBCOMP, 2, packet) for packet in released]
        if acks and self._paho.connected:
            self._paho.send(b"".join(acks))

    def close(self) -> None:
        """Let the broker take every acknowledgement, take leave of it (it keeps the session), and disconnect.

        A broker that writes to a connection that is closed drops what it has not read of it: under QoS 1 the messages
        of those acknowledgements would come again. So it answers a ping first. What comes meanwhile stays with it.
        """
        client, deadline = self._paho, self._clock.monotonic() + _CLOSE_SECONDS
        if client.connected:
            client.ping()
        while client.connected and client.pings and (left := deadline - self._clock.monotonic()) > 0:
            code = client.drain(_MOST) or client.loop(min(left, 0.5))
            client.take(_MOST)
            if code != MQTTErrorCode.MQTT_ERR_SUCCESS:
                break
        if client.connected:
            client.disconnect()
        while client.socket() is not None and self._clock.monotonic() < deadline:
            if client.loop(0.05) != MQTTErrorCode.MQTT_ERR_SUCCESS:
                break
        client.drop()

    def _refuse_rival(self, code: ReasonCode | None) -> None:
        if code is not None and code.value == _TAKEN_OVER:
            raise SessionTakenError(
                f"another client took over this session at {self._place.url}: give each client a unique "
                "--client-id, and check whether this ingest also runs elsewhere"
            )

    def _await(self, packet: str, arrived: Callable[[], bool]) -> None:
        deadline = self._clock.monotonic() + self._options.timeout
        while not arrived():
            left = deadline - self._clock.monotonic()
            code = self._paho.drain(_MOST) or self._paho.loop(max(0.0, min(left, 0.5)))
            if arrived():
                return
            if code != MQTTErrorCode.MQTT_ERR_SUCCESS or left <= 0:
                how = "it closed the connection" if left > 0 else f"waited {self._options.timeout:g} s"
                self._paho.drop()
                raise BrokerUnavailableError(
                    f"{self._place.url} did not answer {packet} ({how}): check that the broker runs and accepts this "
                    "client"
                )

    def _subscription(self, qos: int) -> Any:
        """What paho takes for a topic. Retained messages come with a new subscription, or not at all."""
        if self._options.protocol == "3.1.1":
            return qos
        return PahoSubscribeOptions(qos=qos, retainHandling=1 if self._options.retained else 2)


class _PahoClient(paho.Client):
    """paho's client without its own acknowledgements: it collects what comes, and what the broker answers."""

    def __init__(self, place: BrokerAddress, client: str, options: SubscribeOptions) -> None:
        five = options.protocol == "5"
        super().__init__(
            CallbackAPIVersion.VERSION2,
            client,
            protocol=MQTTProtocolVersion.MQTTv5 if five else MQTTProtocolVersion.MQTTv311,
            reconnect_on_failure=False,
            clean_session=None if five else False,
        )
        self.arrivals: list[ReceivedMessage] = []
        self.granted: list[ReasonCode] = []
        self.ended: list[ReasonCode | None] = []
        self.begin()
        self.connect_timeout = options.timeout
        self.on_connect, self.on_subscribe, self.on_disconnect = _on_connect, _on_subscribe, _on_disconnect
        self.on_unsubscribe = _on_unsubscribe
        self.on_socket_register_write = _no_write  # so that acknowledgements wait for loop_write
        if place.user:
            self.username_pw_set(place.user, place.password or None)
        if place.tls:
            self.tls_set_context(_tls_context(place))
        self._skip_retained = not options.retained
        properties = _connect_properties(options) if five else None
        start: dict[str, Any] = {"clean_start": False} if five else {}
        self.connect_async(place.host, place.port, options.keepalive, properties=properties, **start)

    def begin(self) -> None:
        """Forget the connection before; the messages that it delivered stay until the broker welcomes us again."""
        self.released: list[int] = []
        self._buffer, self._dry = memoryview(b""), False
        self._bytes = sum(len(arrival.payload) for arrival in self.arrivals)
        self.welcome: tuple[ReasonCode, bool] | None = None
        self.pings = 0
        self.connected = False
        self.lost: ReasonCode | None = None

    def welcomed(self, *, kept: bool) -> None:
        """The broker let us in, and has *kept* our session or not.

        If it has, it sends all messages that we did not acknowledge again: those that the connection before delivered
        would be stored twice. If not, it knows nothing of them, and there is nothing to acknowledge.
        """
        if kept:
            self.arrivals = [arrival for arrival in self.arrivals if not arrival.qos]
        else:
            self.arrivals = [msgspec.structs.replace(arrival, qos=0, packet=0) for arrival in self.arrivals]
        self._bytes = sum(len(arrival.payload) for arrival in self.arrivals)

    @property
    def has_bytes(self) -> bool:
        """Whether bytes were read that have not been looked at."""
        return len(self._buffer) > 0

    def has_room(self, most: int) -> bool:
        """Whether fewer than *most* messages, and not too many bytes, wait to be taken."""
        return len(self.arrivals) < most and self._bytes < _GROUP_BYTES

    def take(self, most: int) -> PollResult:
        """What has come since the last time, no more than *most* messages of it."""
        intake = PollResult(self.arrivals[:most], self.released)
        del self.arrivals[:most]
        self.released, self._bytes = [], sum(len(arrival.payload) for arrival in self.arrivals)
        return intake

    def drain(self, most: int) -> MQTTErrorCode:
        """Read what is there, until nothing more is or there is no room for it."""
        code, self._dry = MQTTErrorCode.MQTT_ERR_SUCCESS, False
        while not self._dry and code == MQTTErrorCode.MQTT_ERR_SUCCESS and self._sock and self.has_room(most):
            code = self.loop_read()
        return code

    def send(self, packets: bytes) -> None:
        """Send whole *packets* as one."""
        self._packet_queue(packets[0], packets, 0, 1)
        self.loop_write()

    def ping(self) -> None:
        """Ask for an answer, which comes once the broker has taken all that was sent; ``pings`` are unanswered."""
        self._send_pingreq()

    def drop(self) -> None:
        """Close the sockets, whatever state they are in."""
        self._reset_sockets()
        self.connected = False

    def _ssl_wrap_socket(self, tcp_sock: socket.socket) -> ssl.SSLSocket:
        """As paho does it, but closing what cannot be used."""
        assert self._ssl_context is not None
        wrapped = self._ssl_context.wrap_socket(tcp_sock, server_hostname=self._host, do_handshake_on_connect=False)
        try:
            wrapped.settimeout(self._connect_timeout)
            wrapped.do_handshake()
        except BaseException:
            wrapped.close()
            raise
        return wrapped

    def _sock_recv(self, bufsize: int) -> bytes:
        """Bytes from what was read ahead, so that small packets do not cost three calls of the system each."""
        if not self._buffer:
            try:
                self._buffer = memoryview(super()._sock_recv(max(bufsize, _READ_BYTES)))
            except BlockingIOError:
                self._dry = True
                raise
        taken, self._buffer = self._buffer[:bufsize], self._buffer[bufsize:]
        return bytes(taken)

    def _send_pingreq(self) -> MQTTErrorCode:
        self.pings += 1
        return super()._send_pingreq()

    def _handle_pingresp(self) -> MQTTErrorCode:
        self.pings = max(0, self.pings - 1)
        return super()._handle_pingresp()

    def _handle_publish(self) -> MQTTErrorCode:
        five = self._protocol == MQTTProtocolVersion.MQTTv5
        try:
            arrival = decode_publish(self._in_packet["command"], self._in_packet["packet"], properties=five)
        except (IndexError, struct.error):
            return MQTTErrorCode.MQTT_ERR_PROTOCOL
        if arrival.retained and self._skip_retained:
            if arrival.qos:
                self.send(_ACK.pack(_PUBACK if arrival.qos == 1 else _PUBREC, 2, arrival.packet))
            return MQTTErrorCode.MQTT_ERR_SUCCESS
        self.arrivals.append(arrival)
        self._bytes += len(arrival.payload)
        return MQTTErrorCode.MQTT_ERR_SUCCESS

    def _handle_pubrel(self) -> MQTTErrorCode:
        if len(self._in_packet["packet"]) < 2:
            return MQTTErrorCode.MQTT_ERR_PROTOCOL
        self.released.append(int.from_bytes(self._in_packet["packet"][:2], "big"))
        return MQTTErrorCode.MQTT_ERR_SUCCESS


def _on_connect(client: Any, _data: Any, flags: Any, code: ReasonCode, _properties: Any) -> None:
    client.welcome = code, flags.session_present
    client.connected = not code.is_failure
    if client.connected:
        client.welcomed(kept=flags.session_present)


def _on_subscribe(client: Any, _data: Any, _mid: int, codes: list[ReasonCode], _properties: Any) -> None:
    client.granted = list(codes)


def _on_unsubscribe(client: Any, _data: Any, _mid: int, codes: list[ReasonCode], _properties: Any) -> None:
    client.ended = list(codes) or [None]


def _on_disconnect(client: Any, _data: Any, _flags: Any, code: ReasonCode, _properties: Any) -> None:
    client.connected, client.lost = False, client.lost or code  # the first one says why


def _no_write(_client: Any, _data: Any, _socket: Any) -> None:
    pass


def _connect_properties(options: SubscribeOptions) -> Any:
    properties: Any = Properties(PacketTypes.CONNECT)  # type: ignore[no-untyped-call]
    properties.SessionExpiryInterval = options.expiry
    properties.ReceiveMaximum = options.in_flight
    properties.MaximumPacketSize = options.max_payload + _HEAD_BYTES
    return properties


def _tls_context(place: BrokerAddress) -> ssl.SSLContext:
    try:
        context = ssl.create_default_context(cafile=place.tls_ca or None)
    except OSError as error:
        raise IngestInputError(f"cannot use tls_ca of {place.url}: {place.tls_ca}: {openssl_reason(error)}") from error
    if place.tls_certificate:
        try:
            load_key_pair(context, place.tls_certificate, place.tls_key)
        except KeyPairError as error:
            raise IngestInputError(f"cannot use tls_certificate and tls_key of {place.url}: {error}") from error
    return context


def _certificate_refused(url: str, error: ssl.SSLCertVerificationError) -> str:
    if error.verify_code == _EXPIRED:
        return f"the certificate of {url} has expired: renew it on the broker"
    if error.verify_code in _OTHER_HOST:
        return f"the certificate of {url} is not valid for this host: use a host name that the certificate contains"
    return (
        f"the certificate of {url} is not trusted ({error.verify_message}): add ?tls_ca=FILE to the URL; FILE contains "
        "the certificate of the CA that signed it"
    )
