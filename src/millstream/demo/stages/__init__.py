"""The stages of the demo, in order."""

from __future__ import annotations

from collections.abc import Sequence

from millstream.demo.arrivals import Arrivals
from millstream.demo.runner import SPARK, Stage
from millstream.demo.stages.anchors import anchor_batches, batch_log
from millstream.demo.stages.copies import FILES_SPACE, copy_files, duplicate_spaces, ingest_files, put_files
from millstream.demo.stages.damage_drill import damage_copies, repair_copies, sweep_copies, sweep_files
from millstream.demo.stages.proof import prove_message
from millstream.demo.stages.publish import publish
from millstream.stores import CAS_SPACE


def stages_of(arrivals: Sequence[Arrivals]) -> list[Stage]:
    """All stages for *arrivals*, the first of which are batched in the stage ``batch``."""
    first, *others = [each.log for each in arrivals]
    return [
        *(Stage(f"publish-{each.log}", f"publish to the log {each.log}", publish(each)) for each in arrivals),
        Stage("batch", f"batch {first} by event time (Spark)", batch_log(first), spark=True),
        *(Stage(f"batch-{log}", f"batch {log} (Spark)", batch_log(log), spark=True) for log in others),
        Stage("anchor", "write batch files, anchor, observe", anchor_batches, spark=True),
        Stage("ingest", "take in a folder of real files", ingest_files, ahead=put_files),
        Stage("duplicate", "copy to two more stores by policy", duplicate_spaces, ahead=copy_files, after=("ingest",)),
        Stage(
            "sweep-1",
            "sweep every bit of every copy (Spark)",
            sweep_copies("sweep-1", [FILES_SPACE], [CAS_SPACE]),
            spark=True,
            ahead=sweep_files("sweep-1"),
            beside="anchor",
            after=("duplicate", SPARK),
        ),
        Stage("damage", "flip a bit in one copy, delete another", damage_copies),
        Stage("sweep-2", "sweep again (Spark)", sweep_copies("sweep-2"), spark=True),
        Stage("heal", "repair from the good copies", repair_copies),
        Stage("sweep-3", "sweep a third time (Spark)", sweep_copies("sweep-3"), spark=True),
        Stage("prove", "prove one message, and verify it", prove_message, fresh=True),
    ]
