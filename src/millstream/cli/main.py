"""``millstream``: the commands, each loaded only when it is called."""

from __future__ import annotations

import logging
import os
import sys

import click
from click.shell_completion import shell_complete

from millstream import __version__
from millstream.cli.command_group import CommandGroup
from millstream.cli.logging_setup import INTERRUPTED, describe_error, print_error, stop_logging
from millstream.cli.output import ReaderEndedError, prepare_streams
from millstream.core.errors import MillstreamError
from millstream.core.extras import missing_package
from millstream.core.tracing import exporting

COMPLETE = "_MILLSTREAM_COMPLETE"
"""The environment variable by which a shell requests completions."""


GROUPS = {
    "Start here": {
        "demo": ("millstream.cli.demo:demo", "Run all steps on real data, and report the results."),
        "protect": (
            "millstream.cli.protect:protect",
            "Copy a folder or bucket to other stores, and verify the copies.",
        ),
        "restore": ("millstream.cli.restore:restore", "Restore a space into a folder or another store."),
        "status": (
            "millstream.cli.status:status",
            "Show issues, and how well each space is protected.",
        ),
        "doctor": ("millstream.cli.doctor:doctor", "Check this machine, and show how to install what is missing."),
    },
    "Messages": {
        "log": ("millstream.cli.log:log", "Write, read and check message logs."),
        "ingest": ("millstream.cli.ingest:ingest", "Store messages from an MQTT broker in a log."),
        "topic": ("millstream.cli.topic:topic", "Create, list and configure topics of a broker."),
        "group": ("millstream.cli.topic:group", "Show consumer groups, and set their positions and limits."),
        "client": ("millstream.cli.client:client", "List the clients of a broker, and query them."),
        "send": ("millstream.cli.messages:send", "Send messages to a broker."),
        "receive": ("millstream.cli.messages:receive", "Receive messages from a broker."),
    },
    "Batches and anchors": {
        "batch": ("millstream.cli.batch:batch", "Batch JSON lines by event time."),
        "anchor": ("millstream.cli.anchor:anchor", "Anchor batches in the ledger, and replay it."),
        "prove": ("millstream.cli.prove:prove", "Print the proof of one message."),
        "verify": ("millstream.cli.prove:verify", "Verify a proof with the files that it names."),
        "witness": ("millstream.cli.witness:witness", "Cosign the ledgers of others as a witness."),
    },
    "Copies": {
        "store": ("millstream.cli.store:store", "Manage spaces and content items of storage providers."),
        "mill": ("millstream.cli.mill:mill", "Copy by policy, check every byte, repair, report."),
    },
    "Identifiers": {
        "did": ("millstream.cli.did:did", "Make requests for decentralized identifiers, and resolve them."),
    },
    "Pipeline": {
        "pipeline": ("millstream.cli.pipeline:pipeline", "Run jobs on Spark."),
    },
    "Operate": {
        "serve": ("millstream.cli.serve:serve", "Run a node: a broker for RocketMQ clients, and the web console."),
        "node": (
            "millstream.cli.node:node",
            "Move the tables of a node, and list its processes.",
        ),
        "queue": ("millstream.cli.queue:queue", "Show the depth and dead letters of work queues."),
        "config": ("millstream.cli.config:config", "Show the settings and where each comes from."),
        "bench": ("millstream.cli.bench:bench", "Run benchmarks, in a checkout also of other programs."),
        "completion": ("millstream.cli.completion:completion", "Print the completion script of a shell."),
    },
}
"""The commands by topic, each with the place of its definition (loaded only when it is called) and its purpose."""


@click.group(cls=CommandGroup, tables=GROUPS, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="millstream")
@click.option("--debug", is_flag=True, help="Show the traceback of an error.")
def millstream(debug: bool) -> None:
    """Keeps streams of records provably intact.

    \b
    Exit codes:  0 done · 1 failed, or a check failed · 2 invalid input · 3 not found
                 4 in use by another process · 5 approval required · 130 interrupted
    """


def main() -> None:
    """Run the command line and end the process; errors are printed without a traceback."""
    prepare_streams()
    logging.getLogger().addHandler(logging.NullHandler())  # libraries' complaints are ours to put into words
    if instruction := os.environ.get(COMPLETE):
        sys.exit(shell_complete(millstream, {}, "millstream", COMPLETE, instruction))
    sys.exit(run(sys.argv[1:]))


def run(arguments: list[str]) -> int:
    """Run the command line with *arguments*; the exit code is returned."""
    try:
        with millstream.make_context("millstream", list(arguments)) as context, exporting():
            result = millstream.invoke(context)
        sys.stdout.flush()
        return result if isinstance(result, int) else 0
    except click.exceptions.Exit as stop:
        return stop.exit_code
    except click.ClickException as error:
        error.show()
        return error.exit_code
    except (click.Abort, KeyboardInterrupt):
        print_error("interrupted; run the same command again to resume")
        return INTERRUPTED
    except ReaderEndedError:  # it has seen enough, as in `millstream log read … | head`
        return 0
    except Exception as error:
        if "--debug" in arguments:
            raise
        if isinstance(error, ImportError):
            error = missing_package(error) or error
        print_error(describe_error(error))
        return error.exit_code if isinstance(error, MillstreamError) else 1
    finally:
        stop_logging()
