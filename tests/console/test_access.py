"""Who may do what: sign-in, roles, forged forms, other names, other sites, sizes and headers, on real servers."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from urllib.parse import urlencode

import pytest
from world import Served, basic, serving

from millstream.cli.main import run
from millstream.core.passwords import PasswordError, hash_password, is_password
from millstream.status.local_token import local_token

API = "/api/v1"
FORM = {"Content-Type": "application/x-www-form-urlencoded"}


class Browser:
    """Keeps cookies and knows the token of the last page, as a browser does."""

    def __init__(self, served: Served) -> None:
        self.served, self.cookies, self.token = served, dict[str, str](), ""

    def get(self, path: str, headers: Mapping[str, str] | None = None) -> tuple[int, str, Mapping[str, str]]:
        return self._keep(self.served.ask("GET", path, headers=self._headers(headers)))

    def post(self, path: str, fields: Mapping[str, str], **headers: str) -> tuple[int, str, Mapping[str, str]]:
        body = urlencode({"token": self.token, **fields}).encode()
        return self._keep(self.served.ask("POST", path, body, self._headers({**FORM, **headers})))

    def sign_in(self, name: str) -> tuple[int, str, Mapping[str, str]]:
        self.get("/sign-in")
        found = self.post("/sign-in", {"name": name, "password": f"secret of {name}", "back": "/queues"})
        self.get("/")
        return found

    def _headers(self, more: Mapping[str, str] | None) -> Mapping[str, str]:
        cookies = "; ".join(f"{name}={value}" for name, value in self.cookies.items())
        return {**({"Cookie": cookies} if cookies else {}), **(more or {})}

    def _keep(self, found: tuple[int, str, Mapping[str, str]]) -> tuple[int, str, Mapping[str, str]]:
        name, _, rest = found[2].get("set-cookie", "").partition("=")
        if name:
            self.cookies[name] = rest.partition(";")[0]
        tokens = re.findall(r'name="token" value="([0-9a-f]+)"', found[1])
        self.token = tokens[0] if tokens else self.token
        return found


def test_without_users_it_listens_on_this_machine_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["serve", "--no-broker", "--console", "0.0.0.0:0", "--data", str(tmp_path)]) == 2
    assert "millstream config user" in capsys.readouterr().err


def test_a_password_in_the_settings_that_is_no_hash_is_refused_and_not_shown(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "millstream.toml").write_text('[console.users.ada]\npassword = "hunter22"\n', "utf-8")
    assert run(["serve", "--no-broker", "--data", str(tmp_path)]) == 2
    told = capsys.readouterr().err
    assert "not a password hash" in told and "hunter22" not in told
    assert run(["config", "show", "--data", str(tmp_path)]) == 0
    assert "hunter22" not in capsys.readouterr().out


def test_a_user_is_made_from_a_password_that_is_nowhere_printed() -> None:
    command = [sys.executable, "-m", "millstream", "config", "user", "ada", "--role", "admin", "--stdin"]
    made = subprocess.run(command, input="correct horse\n", capture_output=True, text=True, check=True).stdout
    hashed = re.findall('password = "(.*)"', made)[0]
    assert '[console.users."ada"]' in made and 'role = "admin"' in made and "correct horse" not in made
    assert is_password("correct horse", hashed) and not is_password("correct horsf", hashed)
    with pytest.raises(PasswordError):
        hash_password("short")
    with pytest.raises(PasswordError):
        is_password("x", hashed.replace("scrypt:32768", "scrypt:2"))


def test_nobody_sees_anything_before_signing_in(guarded: Served) -> None:
    browser = Browser(guarded)
    for path in ("/", "/logs", "/queues/duplication-high", "/system"):
        status, _, headers = browser.get(path)
        assert status == 303 and headers["location"].startswith("/sign-in?back=")
    for path in (f"{API}/overview", "/metrics", "/events", f"{API}/system/settings"):
        assert guarded.ask("GET", path)[0] == 401
    assert guarded.ask("GET", "/healthz")[0] == 200


def test_somebody_signs_in_goes_on_where_they_wanted_and_signs_out(guarded: Served) -> None:
    browser = Browser(guarded)
    browser.get("/queues")
    status, _, headers = browser.sign_in("vera")
    assert (status, headers["location"]) == (303, "/queues")
    cookie = headers["set-cookie"].lower()
    assert "httponly" in cookie and "samesite=strict" in cookie
    assert "vera" in browser.get("/queues")[1]
    kept = dict(browser.cookies)
    assert browser.post("/sign-out", {})[0] == 303
    trail = guarded.ask("GET", f"{API}/system/audit-log", headers=basic("vera"))[1]["items"]
    assert [(event["action"], event["user"], event["target"]) for event in reversed(trail)][-3:] == [
        ("sign in", "vera", "address 127.0.0.1"),
        ("sign out", "vera", "address 127.0.0.1"),
        ("sign in", "vera", "address 127.0.0.1"),  # of this program
    ]
    browser.cookies = kept  # whoever has copied the cookie is signed out as well
    assert browser.get("/queues")[0] == 303


def test_a_sign_in_leads_nowhere_but_to_this_console(guarded: Served) -> None:
    browser = Browser(guarded)
    for back in ("https://elsewhere.example/", "//elsewhere.example", "/\\elsewhere.example"):
        browser.get("/sign-in")
        fields = {"name": "vera", "password": "secret of vera", "back": back}
        assert browser.post("/sign-in", fields)[2]["location"] == "/"


def test_roles_are_kept_on_pages_and_in_the_interface(guarded: Served) -> None:
    viewer, operator = Browser(guarded), Browser(guarded)
    viewer.sign_in("vera")
    operator.sign_in("otto")
    assert "Publish a test message" not in viewer.get("/logs/weather")[1]
    assert "Publish a test message" in operator.get("/logs/weather")[1]
    assert viewer.post("/logs/weather/publish", {"body": "x"})[0] == 403
    status, page = operator.post("/policies/local", {"do": "save", "text": "{}", "version": "x"})[:2]
    assert (
        status == 403
        and "Saving a policy requires the role admin" in page
        and "sign in as a user with the role admin" in page
    )
    body = {"body": "x"}
    assert guarded.ask("POST", f"{API}/logs/weather/messages", body, basic("vera"))[0] == 403
    assert guarded.ask("POST", f"{API}/logs/weather/messages", body, basic("otto"))[0] == 200
    put = {"If-Match": "none", **basic("otto")}
    assert guarded.ask("PUT", f"{API}/policies/new", {"text": "{}"}, put)[0] == 403
    assert guarded.ask("PUT", f"{API}/policies/new", {"text": "{}"}, {"If-Match": "none", **basic("ada")})[0] == 200


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("POST", "/topics", {"name": "t"}),
        ("POST", "/topics/delete", {"topic": "t"}),
        ("POST", "/groups/configure", {"group": "g", "max_attempts": 2}),
        ("POST", "/groups/reset", {"group": "g", "topic": "t", "next_id": 1}),
        ("GET", "/clients/stack?client_id=c", None),
        ("POST", "/clients/verify", {"client_id": "c", "topic": "t", "id": 1}),
    ],
)
def test_only_an_operator_acts_on_the_broker(guarded: Served, method: str, path: str, body: object) -> None:
    statuses = [guarded.ask(method, API + path, body, basic(name))[0] for name in ("vera", "otto")]
    assert statuses == [403, 404], "the operator gets as far as the broker, which this node does not have"


def test_a_cookie_that_was_changed_is_nobodys(guarded: Served) -> None:
    browser = Browser(guarded)
    browser.sign_in("vera")
    (name, value), *_ = browser.cookies.items()
    for changed in (value[:-1] + ("0" if value[-1] != "0" else "1"), "A" + value[1:], value.partition(".")[0], "é", ""):
        browser.cookies = {name: changed.encode().decode("latin-1")}
        assert browser.get("/")[0] == 303


def test_guessing_passwords_is_slowed_down(guarded: Served) -> None:
    browser = Browser(guarded)
    browser.get("/sign-in")
    statuses = []
    for _ in range(7):
        statuses.append(browser.post("/sign-in", {"name": "ada", "password": "guessed right?"})[0])
    assert statuses[:5] == [401] * 5 and statuses[5:] == [429] * 2
    for forged in ({}, {"X-Forwarded-For": "192.0.2.9"}):  # which only a proxy may say
        assert guarded.ask("GET", f"{API}/overview", headers={**basic("ada", "guessed"), **forged})[0] == 429


def test_a_form_of_another_page_is_refused(served: Served) -> None:
    browser = Browser(served)
    browser.get("/logs/weather")
    assert browser.post("/logs/weather/publish", {"body": "x", "token": "0" * 64})[0] == 403
    assert browser.post("/logs/weather/publish", {"body": "x"}, Origin="http://elsewhere.example")[0] == 403
    site = {"Sec-Fetch-Site": "cross-site"}
    assert served.ask("POST", f"{API}/queues/repair/redrive", {"everything": True}, site)[0] == 403
    browser.cookies.clear()
    assert browser.post("/logs/weather/publish", {"body": "x"})[0] == 403


def test_an_address_puts_no_notice_on_a_page(asked: Served) -> None:
    browser = Browser(asked)
    assert 'class="notice"' not in browser.get("/logs/weather?notice=Call+555-0100")[1]
    location = browser.post("/logs/weather/publish", {"body": "x"})[2]["location"]
    assert "Appended as message" in browser.get(location)[1]
    browser.cookies.clear()
    assert "Appended as message" not in browser.get(location)[1], "another session"


def test_another_name_for_this_machine_is_refused(served: Served) -> None:
    assert served.ask("GET", "/", headers={"Host": "rebound.example"})[0] == 421
    assert served.ask("GET", f"{API}/overview", headers={"Host": "rebound.example:80"})[0] == 421
    assert served.ask("GET", "/healthz", headers={"Host": "localhost:1"})[0] == 200


def test_every_answer_has_headers_that_keep_browsers_careful(served: Served) -> None:
    for path in ("/", "/nothing", f"{API}/overview", f"{API}/nothing", "/metrics", "/static/nothing.js"):
        headers = served.ask("GET", path)[2]
        assert "default-src 'none'" in headers["content-security-policy"]
        assert "unsafe" not in headers["content-security-policy"]
        assert (headers["x-content-type-options"], headers["x-frame-options"]) == ("nosniff", "DENY")
        assert headers["cache-control"] == "no-store" and "server" not in headers


def test_assets_may_be_kept_for_ever_and_are_the_ones_that_were_vendored(served: Served) -> None:
    page = served.ask("GET", "/")[1]
    assets = re.findall(r'"(/static/[^"]+)"', page)
    assert len(set(assets)) == 6
    for asset in set(assets):
        status, _, headers = served.ask("GET", asset)
        assert status == 200 and "immutable" in headers["cache-control"]
    import millstream.console

    folder = Path(millstream.console.__path__[0]) / "static" / "vendor"
    subprocess.run(["sha256sum", "--check", "--strict", "SHA256SUMS"], cwd=folder, check=True, capture_output=True)


@pytest.mark.parametrize(
    "path", ["/static/../app.py", "/static/..%2fapp.py", "/files/..%2f..%2fnode.db", "/logs/..%2f.."]
)
def test_nothing_but_what_is_meant_is_served(served: Served, path: str) -> None:
    assert served.ask("GET", path)[0] in (400, 404)


def test_sizes_are_bounded(served: Served) -> None:
    assert served.ask("GET", "/" + "x" * 9000)[0] == 414
    huge = b'{"proof": "' + b"x" * (21 << 20)
    assert served.ask("POST", f"{API}/proofs/verify", huge)[0] == 413
    browser = Browser(served)
    browser.get("/logs/weather")
    assert browser.post("/logs/weather/publish", {"body": "x" * 70_000})[0] == 400
    assert served.ask("POST", f"{API}/logs/weather/messages", {"body": "x", "more": 1})[0] == 400


def test_the_key_of_the_sessions_is_for_its_owner_alone(served: Served) -> None:
    assert (served.folder / "console.key").stat().st_mode & 0o777 == 0o600


def test_a_visit_outlives_the_server_and_a_new_password_ends_it(
    copied: Callable[[], Path],
) -> None:
    folder = copied()
    settings = folder / "millstream.toml"
    plain = settings.read_text("utf-8")

    def user(password: str) -> str:
        return f'{plain}\n[console.users.ada]\npassword = "{hash_password(password)}"\nrole = "admin"\n'

    settings.write_text(user("secret of ada"), "utf-8")
    with serving(folder) as first:
        browser = Browser(first)
        browser.sign_in("ada")
    with serving(folder) as second:
        browser.served = second
        assert browser.get("/system")[0] == 200
        assert browser.post("/logs/weather/publish", {"body": "after the restart"})[0] == 303
    settings.write_text(user("another secret"), "utf-8")
    with serving(folder) as third:
        browser.served = third
        assert browser.get("/system")[0] == 303


def test_the_status_command_may_ask_a_node_that_requires_sign_in(
    guarded: Served, capsysbinary: pytest.CaptureFixture[bytes]
) -> None:
    """Who may read the key in the data folder may look, and change nothing."""
    assert run(["status", "--json", "--data", str(guarded.folder)]) == 1
    found = json.loads(capsysbinary.readouterr().out.splitlines()[-1])
    shown = guarded.ask("GET", f"{API}/overview/verdict", headers=basic("vera"))[1]
    assert found["watching"] and [one["kind"] for one in found["issues"]] == [one["kind"] for one in shown["issues"]]
    token = {"Authorization": f"Bearer {local_token(guarded.folder)}"}
    assert guarded.ask("POST", f"{API}/logs/weather/messages", {"body": "x"}, token)[0] == 403
    assert guarded.ask("GET", f"{API}/overview/verdict", headers={"Authorization": "Bearer wrong"})[0] == 401
