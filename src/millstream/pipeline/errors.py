"""The errors of Spark jobs."""

from __future__ import annotations

from millstream.core.errors import BusyError, InputError, MillstreamError, NotFoundError


class PipelineError(MillstreamError):
    """The Spark job could not be done."""


class PipelineInputError(PipelineError, InputError):
    """The input of the Spark job cannot be used as it is."""


class UnusableFileError(PipelineInputError):
    """A file of the input cannot be taken as a whole; the others can."""


class StagedPartGoneError(PipelineError):
    """A staged part of a commit is not there as its task stored it, and nothing of the commit is in the log."""


class UnlistedSpaceError(PipelineError):
    """A store did not list the whole space, so the job did nothing with it."""


class JavaNotFoundError(PipelineError, NotFoundError):
    """No Java 17 or newer was found."""


class SessionBusyError(PipelineError, BusyError):
    """This process already has a Spark session: stop that session first, or pass it to the job."""


class SessionStartError(PipelineError):
    """Spark's Java process did not start."""


class SparkLostError(PipelineError):
    """Spark's Java process ended while a job was running."""

    transient = True
