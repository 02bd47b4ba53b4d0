#!/usr/bin/env python3
"""Test of `look`, and of the page with the answers in state.json and history.json.

The page is served as by masu, with its content security policy. A page that takes names for HTML must be found out.
Run by hand: live-tests/browser/look_test.py [FOLDER FOR SCREENSHOTS]
"""

import http.server
import json
import pathlib
import subprocess
import sys
import threading
import unittest
import urllib.parse

HERE = pathlib.Path(__file__).resolve().parent
PAGE = HERE.parent.parent / "crates/serve/page"
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self'; "
    "frame-ancestors 'none'; base-uri 'none'; form-action 'none'"
)
KINDS = {"html": "text/html; charset=utf-8", "js": "text/javascript", "css": "text/css", "svg": "image/svg+xml"}
HOSTILE_GROUP = "/<script>alert(1)</script>\\x1b[31m"
HOSTILE_COMMAND = "<img src=x onerror=alert(1)>"
HOSTILE_RULE = "<b onmouseover=alert(2)>backup</b>"
PICTURES = None


class Server:
    """A server of the page, with answers that a test changes."""

    def __init__(self, state=None, policy=POLICY, alter=lambda name, text: text, answers=None):
        self.state = json.loads((HERE / "state.json").read_text())
        self.state.update(state or {})
        history = (HERE / "history.json").read_text()
        left = [answers]

        class Handler(http.server.BaseHTTPRequestHandler):
            """One request."""

            def do_GET(handler):  # noqa: N802, N805
                """Answers as masu does."""
                path = urllib.parse.urlsplit(handler.path).path
                name = {"/": "index.html"}.get(path, path[1:])
                if path == "/api/v1/state":
                    if left[0] is not None:
                        left[0] -= 1
                    if left[0] is not None and left[0] < 0:
                        handler.send_error(503)
                        return
                    self.state["run_s"] += 5
                    text, kind = json.dumps(self.state), "application/json"
                elif path == "/api/v1/history":
                    text, kind = history, "application/json"
                elif "/" not in name and (PAGE / name).is_file():
                    text, kind = alter(name, (PAGE / name).read_text()), KINDS[name.rsplit(".", 1)[1]]
                else:
                    handler.send_error(404)
                    return
                handler.send_response(200)
                handler.send_header("Content-Type", kind)
                if policy:
                    handler.send_header("Content-Security-Policy", policy)
                handler.end_headers()
                handler.wfile.write(text.encode())

            def log_message(self, *_):
                """Prints nothing."""

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}/"

    def __enter__(self):
        threading.Thread(target=self.server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_):
        self.server.shutdown()
        self.server.server_close()


def look(url, *arguments, picture=None):
    """Exit status and lines of `look`."""
    command = [str(HERE / "look"), url, *arguments]
    if picture and PICTURES:
        command += ["--screenshot", str(PICTURES / f"{picture}.png")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    return done.returncode, done.stdout + done.stderr


def with_names_as_html(name, text):
    """The page as it must not be."""
    altered = text.replace("node.textContent = text", "node.innerHTML = text")
    assert name != "app.js" or altered != text
    return altered


class Test(unittest.TestCase):
    """Tests, each with a browser of its own."""

    def holds(self, url, *arguments, picture=None):
        """No fault."""
        self.assertEqual(look(url, *arguments, picture=picture), (0, ""))

    def test_each_view_shows_names_as_text_on_each_screen(self):
        group = urllib.parse.quote("/system.slice/redis.service", safe="")
        views = {
            "groups": [HOSTILE_GROUP, "1.00 GiB", "95.3 %", "1.2 MiB"],
            f"group={group}": ["redis.service", "working set", "944.0 MiB"],
            f"group={urllib.parse.quote(HOSTILE_GROUP, safe='')}": [HOSTILE_GROUP, "No history of this group in this range."],
            "rules": [HOSTILE_COMMAND, HOSTILE_RULE, "it forbids huge pages (prctl)", "not observed"],
            "log": [HOSTILE_COMMAND, "rule <b onmouseover=alert(2)>backup</b>: <iframe src=//host>", "has settled"],
        }
        with Server() as server:
            for number, (view, texts) in enumerate(views.items()):
                for size in (["--width", "1280", "--height", "800"], ["--width", "360", "--height", "740", "--dark"]):
                    with self.subTest(view=view, size=size):
                        picture = f"{number}-{size[1]}"
                        self.holds(f"{server.url}#{view}", "--text", *texts, *size, picture=picture)

    def test_names_taken_for_html_are_found(self):
        with Server(alter=with_names_as_html) as server:
            status, lines = look(f"{server.url}#rules", "--text", HOSTILE_RULE, "--wait", "3")
            self.assertEqual(status, 1)
            self.assertIn("text is missing: <b", lines)
            self.assertIn("attribute that runs code: b[onmouseover]", lines)
            self.assertIn("Content Security Policy", lines)
            status, lines = look(f"{server.url}#log", "--wait", "3")
            self.assertEqual(status, 1)
            self.assertIn("element is there: body img", lines)
            self.assertIn("element is there: body iframe", lines)

    def test_a_dialog_is_found(self):
        with Server(alter=with_names_as_html, policy=None) as server:
            status, lines = look(f"{server.url}#rules", "--text", "redis", "--settle", "2")
            self.assertEqual(status, 1)
            self.assertIn("dialog: 1", lines)

    def test_missing_texts_and_selectors_are_named(self):
        with Server() as server:
            status, lines = look(server.url, "--text", "redis.service", "absent", "--absent", "table", "--wait", "2")
            self.assertEqual((status, lines.splitlines()[0]), (1, "look: text is missing: absent"))
            self.assertIn("element is there: table", lines)
            self.assertEqual(len(lines.splitlines()), 2)
        status, lines = look("http://127.0.0.1:9/")
        self.assertEqual((status, "cannot open" in lines), (1, True), lines)

    def test_empty_states_are_told(self):
        groups = {"groups": [], "left_out": 0, "took_s": 0.0, "every_s": 0.0}
        empty = {"rules": [], "processes": [], "events": [], "groups": groups, "run_s": 3.0}
        with Server(empty) as server:
            self.holds(f"{server.url}#groups", "--text", "The first measurement of the control groups is pending.")
            self.holds(f"{server.url}#rules", "--text", "No rule is in force")
            self.holds(f"{server.url}#log", "--text", "No event yet.")
        with Server({**empty, "run_s": 300.0}) as server:
            self.holds(server.url, "--text", "this host has no memory controller")
        with Server({**empty, "groups": {**groups, "every_s": 10.0}}) as server:
            self.holds(server.url, "--text", "No group is charged for memory: the memory controller is off")

    def test_faults_are_warned_of(self):
        with Server({"reload_failed": "masu.toml line 3: <i>unknown</i> key"}) as server:
            self.holds(server.url, "--text", "The rules were changed and have a fault", "<i>unknown</i>", picture="fault")
        with Server(answers=1) as server:
            texts = ["--text", "No answer from masu since", "/api/v1/state answers 503.", "redis.service"]
            self.holds(server.url, *texts, "--allow", "503", picture="no-answer")

    def test_sort_and_filter_stay(self):
        first = "document.querySelector('#groups-table tbody tr').textContent.includes(%s)"
        with Server() as server:
            by_name = ["--click", "#groups-table th:first-child button"]
            self.holds(server.url, *by_name, "--settle", "6", "--true", first % '"script"')
            twice = ["--click", "#groups-table th:first-child button", "#groups-table th:first-child button"]
            self.holds(server.url, *twice, "--settle", "6", "--true", first % '"user.slice"')
            ranges = "document.querySelector('[data-range=\"7d\"]').getAttribute('aria-pressed') === 'true'"
            link = ["--click", "#groups-table a", '[data-range="7d"]']
            self.holds(server.url, *link, "--text", "redis.service", "--true", ranges)


if __name__ == "__main__":
    if len(sys.argv) > 1 and not sys.argv[1].startswith("-"):
        PICTURES = pathlib.Path(sys.argv.pop(1))
    unittest.main()
