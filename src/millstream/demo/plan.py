"""The plan of a run of the demo; kept in the data folder, so that the same command resumes an interrupted run."""

from __future__ import annotations

from pathlib import Path

import msgspec

from millstream.core.canonical import canonical_json
from millstream.core.decoding import prepared
from millstream.core.durable import write_durably
from millstream.core.errors import InputError
from millstream.demo.delivery import DeliveryModel

FLIGHTS_LOG = "flights"
PLAN_FILE = "plan.json"
"""The plan's name in the folder of the demo's own records; it is there before anything else of a demo."""


class PlanError(InputError):
    """The folder holds a demo made with other options."""


class DemoPlan(msgspec.Struct, frozen=True):
    """The options that decide the demo's figures. Times are in microseconds.

    ``input_sha256`` is the hash of the user's file, empty for the demo's own records. ``flights`` says that there is a
    log of flights beside that of the weather; plans of earlier versions had none.
    """

    window: int
    cut: str
    delivery: DeliveryModel
    limit: int | None = None
    input_sha256: str = ""
    flights: bool = False

    @property
    def log(self) -> str:
        """The name of the log of which a message is proven."""
        return "records" if self.input_sha256 else "weather"

    @property
    def logs(self) -> tuple[str, ...]:
        """The names of the logs whose messages are batched and anchored."""
        return (self.log, FLIGHTS_LOG) if self.flights else (self.log,)

    def keep(self, folder: Path) -> DemoPlan:
        """Write the plan into *folder*, or check that the plan there is this one (else :class:`PlanError`); the plan
        that is there, which has no flights where an earlier version began it."""
        path = folder / PLAN_FILE
        if not path.exists():
            write_durably(path, canonical_json(msgspec.to_builtins(self)))
            return self
        try:
            kept = msgspec.json.decode(path.read_bytes(), type=prepared(DemoPlan))
        except msgspec.DecodeError as error:
            raise PlanError(
                f"{path} is damaged ({error}): remove the folder {folder.parent}, or choose another folder with --data"
            ) from error
        if msgspec.structs.replace(kept, flights=self.flights) != self:
            raise PlanError(
                f"{folder.parent} contains a demo with other options: {_difference(kept, self)}; give the earlier "
                "options again, or choose another folder with --data"
            )

        return kept


def _difference(kept: DemoPlan, asked: DemoPlan) -> str:
    """The first option that is not what it was."""
    was, now = (msgspec.to_builtins(plan) for plan in (kept, asked))
    for values in (was, now):
        values.update(values.pop("delivery"))
    name = next(name for name in was if was[name] != now[name])
    return f"{name} was {was[name]!r}, and is now {now[name]!r}"
