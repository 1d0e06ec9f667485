"""The errors of Spark jobs."""

from __future__ import annotations

from millstream.core.errors import BusyError, InputError, MillstreamError, NotFoundError


class PipelineError(MillstreamError):
    """The Spark job could not be done."""


class PipelineInputError(PipelineError, InputError):
    """The input of the Spark job cannot be used as it is."""


class UnusableFileError(PipelineInputError):
    """A file of the input cannot be taken as a whole; the others can."""


class JavaNotFoundError(PipelineError, NotFoundError):
    """No Java 17 or newer was found."""


class SessionBusyError(PipelineError, BusyError):
    """This process has a Spark session already: one at a time. Stop it first, or hand it to the job."""


class SessionStartError(PipelineError):
    """The Java machine of Spark did not start."""


class SparkLostError(PipelineError):
    """The Java machine of Spark ended while a job was running."""

    transient = True
