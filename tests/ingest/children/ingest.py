"""An ingest to be killed. Arguments: URL of the broker, folder, topic, QoS, where to die (or ``never``), at which turn.

It dies by SIGKILL ``before`` the append of that turn, ``between`` append and acknowledgement, or ``after`` both.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

from millstream.core.clock import SystemClock
from millstream.core.documents import FileDocument
from millstream.core.metric_collection.hook import NoMetrics
from millstream.ingest import Receipts, parse_broker, payload_parser
from millstream.ingest.connection import MqttConnection, PollResult
from millstream.ingest.loop import MqttIngest
from millstream.ingest.options import SubscribeOptions
from millstream.log import LogSpec, open_store


class Mortal(MqttConnection):
    """Counts turns in which something came, and ends the process at one of them."""

    where, turns = "never", 0

    def poll(self, seconds: float, most: int) -> PollResult:
        intake = super().poll(seconds, 20)  # many places to die
        self.turns -= bool(intake.arrivals)
        self.die("before")
        print(len(intake.arrivals), flush=True)
        return intake

    def confirm(self, arrivals: object, released: object) -> None:
        self.die("between")
        super().confirm(arrivals, released)  # type: ignore[arg-type]
        self.die("after")

    def die(self, here: str) -> None:
        if here == self.where and self.turns == 0:
            os.kill(os.getpid(), signal.SIGKILL)


def main(url: str, folder: Path, topic: str, qos: int, where: str, turn: int) -> None:
    clock, options = SystemClock(), SubscribeOptions(topics=(topic,), qos=qos)  # type: ignore[arg-type]
    with open_store(f"sqlite:///{folder / 'log.db'}") as store:
        log, aside = store.log(LogSpec("in")), store.log(LogSpec("in.rejects"))
        with log.writer() as records, aside.writer() as rejects:
            session = FileDocument(folder / "session.json")
            receipts = Receipts(session, [log, aside], make_name=lambda: f"crash-{folder.name}")
            connection = Mortal(parse_broker(url), receipts.client, options, clock)
            connection.where, connection.turns = where, turn
            loop = MqttIngest(
                connection,
                receipts,
                options,
                shape=payload_parser("json"),
                records=records,
                rejects=rejects,
                clock=clock,
                metrics=NoMetrics(),
                say=lambda text: None,
            )
            loop.run(lambda: False)


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), sys.argv[3], int(sys.argv[4]), sys.argv[5], int(sys.argv[6]))
