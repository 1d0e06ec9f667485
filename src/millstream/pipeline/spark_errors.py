"""Errors of Spark in one line with a remedy."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator

from py4j.protocol import Py4JError, Py4JJavaError
from pyspark.errors import PySparkException

from millstream.pipeline.errors import PipelineError, SparkLostError
from millstream.pipeline.gateway_connection import log_folder

_RAISED = re.compile(r"^([A-Za-z_][\w.]*): (.+)$", re.MULTILINE)
"""The last line of a Python traceback, wherever Spark put it."""

_THROWN = re.compile(r"^(?:: )?(?:[A-Za-z_][\w$]*\.)+[\w$]+: (.+)$", re.MULTILINE)
"""An exception of Java for which PySpark has no class: the message after the name of its class."""

_UNREAD, _DAMAGED = "FAILED_READ_FILE", "; the file is damaged or missing: remove the file, and run its job again"
"""Spark's name of the error where a file of an earlier job cannot be read, and what to do."""


@contextlib.contextmanager
def spark_errors_explained(job: str) -> Iterator[None]:
    """Turn what Spark raises inside the block into :class:`PipelineError` that says what went wrong in *job*."""
    try:
        yield
    except (PySparkException, Py4JJavaError) as error:
        raise PipelineError(f"the job {job!r} failed: {reason(error)}") from error
    except (Py4JError, ConnectionError) as error:
        folder = log_folder()
        logs = f"spark.log and spark-console.log in {folder}" if folder else "the logs of Spark"
        raise SparkLostError(
            f"Spark's Java process ended during job {job!r}: see {logs}, and run the same command again to resume"
        ) from error


def reason(error: PySparkException | Py4JJavaError) -> str:
    """The line of *error* that names the cause: that of the Python exception in a worker, where there is one."""
    text = str(error)
    traceback = text.rfind("Traceback (most recent call last):")
    raised = _RAISED.findall(text, traceback) if traceback >= 0 else []
    if not raised:
        thrown = _THROWN.search(text) if isinstance(error, Py4JJavaError) else None
        first = thrown.group(1) if thrown else text.strip().partition("\n")[0]
        return first + (_DAMAGED if _UNREAD in text else "")
    name, message = raised[0]
    return message if name.startswith("millstream.") else f"{name}: {message}"
