"""Every error of the Sidetree protocol.

::

    SidetreeError          (AnchoringError)
    ├── RequestError         an operation breaks a rule; ``code`` names the rule (InputError)
    ├── BatchFileError       an anchored file, or the anchor string, breaks a rule (InputError)
    └── BatchTooLargeError   these operations do not fit into one batch; ``file`` names what would overflow
"""

from __future__ import annotations

from millstream.anchoring.errors import AnchoringError
from millstream.core.errors import InputError


class SidetreeError(AnchoringError):
    """The Sidetree protocol could not do what was asked."""


class RequestError(SidetreeError, InputError):
    """The operation breaks a rule of the protocol. ``code`` is for programs, the text for people."""

    def __init__(self, code: str, text: str) -> None:
        super().__init__(text)
        self.code = code


class BatchFileError(SidetreeError, InputError):
    """What was anchored breaks a rule of the file formats (Sidetree v1.0, "File Structures")."""


class BatchTooLargeError(SidetreeError):
    """The operations are too many for one batch. ``file`` is the file that would be larger than allowed."""

    def __init__(self, file: str, size: int, limit: int) -> None:
        super().__init__(f"the {file} would have {size:,} bytes, and {limit:,} are allowed; cut a smaller batch")
        self.file = file
        self.size = size
        self.limit = limit
