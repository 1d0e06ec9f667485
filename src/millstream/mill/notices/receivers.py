"""The receivers of alarms and other notices: a webhook, a command, or mail."""

from __future__ import annotations

import smtplib
import subprocess
import urllib.error
import urllib.request
from collections.abc import Sequence
from email.message import EmailMessage
from http.client import HTTPException
from typing import Any, Protocol
from urllib.parse import urlsplit

import msgspec

from millstream.mill.errors import MillError
from millstream.mill.notices.alarms import Alarm

SECONDS = 30.0
"""How long a receiver may take."""

_COMMAND_TODO = "run it by hand with a JSON object on its input, and correct it or mill.alarms.command"


class NewSpace(msgspec.Struct, frozen=True):
    """A space was created (reference mill §1.7, the audit task's last step)."""

    account: str
    store: str
    space: str
    message: str
    kind: str = "new-space"

    @property
    def subject(self) -> str:
        """The subject, in a few words."""
        return f"new space {self.space} in {self.store}"


class BadReport(msgspec.Struct, frozen=True):
    """An integrity report that does not say SUCCESS (reference mill §1.9: "mail with every error line")."""

    store: str
    space: str
    result: str
    message: str
    kind: str = "report"

    @property
    def subject(self) -> str:
        """The subject, in a few words."""
        return f"integrity of {self.space} in {self.store}: {self.result}"


Notice = Alarm | NewSpace | BadReport
"""A notice: it has a ``subject`` and a ``message``, and its fields are plain data."""


class NoticeError(MillError):
    """An alarm was not delivered; a later attempt may succeed.

    ``summary`` is the text without *details*, which may be secret, and without *todo*: what the operator does.
    """

    transient = True

    def __init__(self, summary: str, details: str = "", *, todo: str = "") -> None:
        text = f"{summary}: {details}" if details else summary
        super().__init__(f"{text}; {todo}" if todo else text)
        self.summary = summary


class NoticeReceiver(Protocol):
    """A receiver of alarms, and of news of new spaces."""

    def tell(self, notice: Notice) -> None:
        """Raises :class:`NoticeError` where it does not arrive."""
        ...


MOST_REACHED = 1000
"""Notices of which a :class:`NoticeSender` keeps whom they reached; of more, the latest."""


class NoticeSender:
    """Tells *receivers*, and at a second attempt only those that the notice did not reach. Thread-safe."""

    def __init__(self, receivers: Sequence[NoticeReceiver]) -> None:
        self._receivers = list(receivers)
        self._reached: dict[Notice, frozenset[int]] = {}

    def tell(self, notice: Notice, attempt: int) -> int:
        """Tell all receivers, for the *attempt*-th time (1 is the first); returns how many there are.

        Raises the first error after all were tried.
        """
        errors = list[Exception]()
        if attempt == 1:  # another notice, although one with the same words reached some of them before
            self._reached.pop(notice, None)
        for number, receiver in enumerate(self._receivers):
            reached = self._reached.get(notice, frozenset())
            if number in reached:
                continue
            try:
                receiver.tell(notice)
            except Exception as error:  # of whatever kind: the others are told in any case
                errors.append(error)
            else:
                self._reached[notice] = reached | {number}
        if errors:
            for oldest in list(self._reached)[:-MOST_REACHED]:
                self._reached.pop(oldest, None)
            raise errors[0]
        self._reached.pop(notice, None)
        return len(self._receivers)


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """Makes redirects fail: urllib would follow one with a GET without the notice, and take its answer as success."""

    def redirect_request(self, *_args: Any) -> None:
        """No request follows, so that the redirect is an HTTPError."""


_REDIRECTS = (301, 302, 303, 307, 308)


class WebHookReceiver:
    """Posts the alarm as JSON to *url* (http or https), which errors say is the value of *option*."""

    def __init__(self, url: str, option: str = "mill.alarms.webhook") -> None:
        try:
            is_web = urlsplit(url).scheme in ("http", "https")
        except ValueError:  # such as a host that begins with [ and has no ]
            is_web = False
        if not is_web:
            raise NoticeError(f"invalid webhook URL in {option}: write a URL that begins with http:// or https://")
        self._url, self._option = url, option

    def tell(self, notice: Notice) -> None:
        data = msgspec.json.encode(notice)
        try:
            request = urllib.request.Request(self._url, data, {"Content-Type": "application/json"}, method="POST")  # noqa: S310
            with urllib.request.build_opener(_NoRedirects).open(request, timeout=SECONDS):
                return
        except urllib.error.HTTPError as error:
            error.close()
            if error.code in _REDIRECTS:
                raise NoticeError(
                    f"{self._name} redirects the notice to another URL: {error.code} {error.reason}",
                    todo=f"write the URL to which it redirects in {self._option}",
                ) from error
            raise NoticeError(
                f"{self._name} did not accept the notice: {error.code} {error.reason}",
                todo=f"check the program that answers at the URL in {self._option}",
            ) from error
        except OSError as error:
            reason = getattr(error, "reason", error)
            raise NoticeError(
                f"{self._name} cannot be reached: {getattr(reason, 'strerror', None) or reason}",
                todo=f"check {self._option}, and that a program answers at this URL",
            ) from error
        except (HTTPException, ValueError) as error:  # an answer that is not HTTP, or the URL, which the text may have
            raise NoticeError(
                f"the notice cannot be posted to {self._name}: {type(error).__name__}",
                todo=f"check the scheme, port and path of {self._option}, and that a web server answers there",
            ) from error

    @property
    def _name(self) -> str:
        """The webhook without the rest of its URL, which is often a secret."""
        return f"the webhook at {urlsplit(self._url).hostname}"


class CommandReceiver:
    """Runs the program *words* (no shell) with the alarm as JSON on its standard input."""

    def __init__(self, words: Sequence[str]) -> None:
        self._words = list(words)

    def tell(self, notice: Notice) -> None:
        try:
            done = subprocess.run(
                self._words, input=msgspec.json.encode(notice), capture_output=True, timeout=SECONDS, check=False
            )
        except subprocess.TimeoutExpired as error:  # whose text has the arguments, which are often secret
            raise NoticeError(
                f"the alarm command {self._words[0]} did not finish within {SECONDS:g} s", todo=_COMMAND_TODO
            ) from error
        except OSError as error:
            raise NoticeError(
                f"cannot run the alarm command {self._words[0]}: {error.strerror}", todo="correct mill.alarms.command"
            ) from error
        if done.returncode:
            text = done.stderr.decode("utf-8", "replace")[-500:].strip()
            raise NoticeError(
                f"the alarm command {self._words[0]} exited with code {done.returncode}", text, todo=_COMMAND_TODO
            )


class MailReceiver:
    """Sends a mail *to* people through the server *host*, by *sender*."""

    def __init__(self, host: str, port: int, sender: str, to: Sequence[str]) -> None:
        self._host, self._port, self._sender, self._to = host, port, sender, list(to)

    def tell(self, notice: Notice) -> None:
        message = EmailMessage()
        message["Subject"] = f"Millstream: {notice.subject}"
        message["From"], message["To"] = self._sender, ", ".join(self._to)
        message.set_content(notice.message)
        try:
            with smtplib.SMTP(self._host, self._port, timeout=SECONDS) as server:
                server.send_message(message)
        except (smtplib.SMTPSenderRefused, smtplib.SMTPRecipientsRefused, smtplib.SMTPDataError) as error:
            raise NoticeError(
                f"the mail server {self._host}:{self._port} did not accept the notice: {_reason(error)}",
                todo="check mill.alarms.mail_from and mill.alarms.mail_to",
            ) from error
        except OSError as error:  # of which SMTPException is one
            raise NoticeError(
                f"cannot send the notice through the mail server {self._host}:{self._port}: {_reason(error)}",
                todo="check mill.alarms.smtp_host and mill.alarms.smtp_port, and that the mail server runs",
            ) from error


def _reason(error: OSError) -> str:
    """The answer of the mail server, or the error if there is none."""
    if isinstance(error, smtplib.SMTPRecipientsRefused):
        return "; ".join(f"{to}: {code} {_text(answer)}" for to, (code, answer) in error.recipients.items())
    if isinstance(error, smtplib.SMTPResponseException):
        return f"{error.smtp_code} {_text(error.smtp_error)}"
    return error.strerror or str(error)


def _text(answer: bytes | str) -> str:
    return answer.decode("utf-8", "replace") if isinstance(answer, bytes) else answer
