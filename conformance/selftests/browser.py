"""A headless Chromium, driven over the pipe of its DevTools protocol; needs no other package."""

import contextlib
import fcntl
import json
import os
import select
import shutil
import signal
import subprocess
import tempfile
import time

_NAMES = ("chromium", "chromium-browser", "google-chrome-stable", "google-chrome")
_OPTIONS = (
    "--headless --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking "
    "--disable-component-update --disable-sync --disable-dev-shm-usage --hide-scrollbars --remote-debugging-pipe"
)
_LIMIT_S = 180  # of one answer, on a busy machine
_KEYS = {
    "Enter": (13, "\r"),
    " ": (32, " "),
    "Tab": (9, ""),
    "Escape": (27, ""),
    "ArrowDown": (40, ""),
    "ArrowUp": (38, ""),
    "ArrowRight": (39, ""),
    "ArrowLeft": (37, ""),
}


class BrowserError(Exception):
    """No browser, or one that does not answer as it should."""


class Browser:
    """Context manager for one tab; calling it sends a command of the protocol and returns the answer."""

    def __init__(self):
        program = next(filter(None, map(shutil.which, _NAMES)), None)
        if program is None:
            raise BrowserError(
                "the tests of the HTML page need Chromium, which is not installed. "
                "Install Debian's package 'chromium': apt-get install chromium"
            )
        self._profile = tempfile.mkdtemp(prefix="unigrad-browser-")
        read, to_write = os.pipe()
        to_read, write = os.pipe()
        # The protocol uses descriptors 3 and 4 of the browser; ours must not stand in their place.
        ends = [fcntl.fcntl(end, fcntl.F_DUPFD_CLOEXEC, 10) for end in (read, write)]

        def place():
            os.dup2(ends[0], 3)
            os.dup2(ends[1], 4)

        self._process = subprocess.Popen(
            [program, *_OPTIONS.split(), f"--user-data-dir={self._profile}", "about:blank"],
            preexec_fn=place,
            close_fds=False,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
            env={**os.environ, "TMPDIR": self._profile},  # it is killed in the end, and would leave folders of its own
        )
        for end in (read, write, *ends):
            os.close(end)
        self._write, self._read = to_write, to_read
        self._buffer = b""
        self._number = 0
        self._session = None
        self.events = []

    def __enter__(self):
        try:
            target = self("Target.createTarget", url="about:blank")["targetId"]
            self._session = self("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
            for domain in ("Page", "Network", "Runtime", "Log"):
                self(f"{domain}.enable")
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *details):
        for end in (self._write, self._read):
            os.close(end)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        shutil.rmtree(self._profile, ignore_errors=True)

    def __call__(self, method, **parameters):
        self._number += 1
        message = {"id": self._number, "method": method, "params": parameters}
        if self._session is not None:
            message["sessionId"] = self._session
        os.write(self._write, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._next()
            if answer.get("id") == self._number:
                if "error" in answer:
                    raise BrowserError(f"{method}: {answer['error']}")
                return answer["result"]
            self.events.append(answer)

    def _next(self):
        until = time.monotonic() + _LIMIT_S
        while b"\0" not in self._buffer:
            ready, _, _ = select.select([self._read], [], [], max(until - time.monotonic(), 0))
            if not ready:
                raise BrowserError(f"the browser has not answered for {_LIMIT_S} s")
            more = os.read(self._read, 1 << 20)
            if not more:
                raise BrowserError(f"the browser ended ({self._process.wait()})")
            self._buffer += more
        message, _, self._buffer = self._buffer.partition(b"\0")
        return json.loads(message)

    def wait_for(self, method):
        """Return the parameters of the next event of a name, from those that came since :meth:`open`."""
        while True:
            for event in self.events:
                if event.get("method") == method:
                    self.events.remove(event)
                    return event["params"]
            self.events.append(self._next())

    def open(self, address, *, width=1280, height=900, dark=False, media="", scripts=True):
        """Load a page and wait until it is there."""
        self("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < 500)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self("Emulation.setEmulatedMedia", media=media, features=[scheme])
        self("Emulation.setScriptExecutionDisabled", value=not scripts)
        self("Page.navigate", url="about:blank")  # an address that differs in its hash alone is not loaded anew
        self.wait_for("Page.loadEventFired")
        self.events.clear()
        self("Page.navigate", url=address)
        self.wait_for("Page.loadEventFired")
        if scripts:
            self.run("new Promise((done) => setTimeout(done, 50))")

    def run(self, expression):
        """Return the value of an expression of JavaScript."""
        answer = self("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in answer:
            raise BrowserError(f"{expression}: {answer['exceptionDetails']}")
        return answer["result"].get("value")

    def press(self, *keys, shift=False):
        """Press keys, named as in KeyboardEvent.key."""
        for key in keys:
            code, text = _KEYS.get(key, (0, key))
            common = {"key": key, "windowsVirtualKeyCode": code, "modifiers": 8 if shift else 0}
            self("Input.dispatchKeyEvent", type="keyDown" if text else "rawKeyDown", text=text, **common)
            self("Input.dispatchKeyEvent", type="keyUp", **common)

    def click(self, selector):
        """Click in the middle of an element with the mouse."""
        middle = (
            f"(() => {{ const one = document.querySelector({json.dumps(selector)}); one.scrollIntoView({{block: 'center'}});"
            "const box = one.getBoundingClientRect(); return [box.x + box.width / 2, box.y + box.height / 2]; })()"
        )
        x, y = self.run(middle)
        for kind in ("mousePressed", "mouseReleased"):
            self("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=1)

    def requests(self):
        """Return the addresses that the page has asked for since it was opened."""
        self.run("1")  # answers come after the events before them
        return [
            event["params"]["request"]["url"]
            for event in self.events
            if event.get("method") == "Network.requestWillBeSent"
        ]

    def complaints(self):
        """Return what the browser complained of since the page was opened: exceptions and logged errors."""
        self.run("1")
        kinds = ("Runtime.exceptionThrown", "Log.entryAdded")
        return [json.dumps(event["params"]) for event in self.events if event.get("method") in kinds]
