"""Chromium without a window, driven over a pipe: what a page looks like, says and does."""

import base64
import fcntl
import json
import os
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.support.mounting import PATIENCE

needs_chromium = pytest.mark.skipif(
    shutil.which("chromium") is None, reason="there is no Chromium here, as scripts/test said"
)

KEYS = {
    "Tab": 9, "Enter": 13, " ": 32, "ArrowLeft": 37, "ArrowUp": 38, "ArrowRight": 39, "ArrowDown": 40,
    "+": 187, "-": 189, "0": 48, "m": 77, "Escape": 27,
}  # fmt: skip


class Page:
    """A page that is open; *problems* are errors of scripts, and what its policy forbade."""

    def __init__(self, to_browser: int, from_browser: int) -> None:
        self._to, self._from = to_browser, from_browser
        self._rest = b""
        self._number = 0
        self._events: list[dict[str, Any]] = []
        self._session: str | None = None
        self.problems: list[str] = []
        self.nasked = 0
        self._password = ""
        target = self._call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self._call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log"):
            self._call(f"{domain}.enable")

    def _receive(self) -> dict[str, Any]:
        while b"\0" not in self._rest:
            data = os.read(self._from, 2**20)
            if not data:
                raise ConnectionError("the browser is gone")
            self._rest += data
        message, _, self._rest = self._rest.partition(b"\0")
        found: dict[str, Any] = json.loads(message)
        match found:
            case {"method": "Runtime.exceptionThrown", "params": {"exceptionDetails": details}}:
                self.problems.append(str(details))
            case {"method": "Fetch.requestPaused", "params": {"requestId": number}}:
                self._send("Fetch.continueRequest", requestId=number)
            case {"method": "Fetch.authRequired", "params": {"requestId": number}}:
                self.nasked += 1
                typed = {"response": "ProvideCredentials", "username": "", "password": self._password}
                self._send("Fetch.continueWithAuth", requestId=number, authChallengeResponse=typed)
            case {"method": "Log.entryAdded", "params": {"entry": {"level": "error", "text": text}}}:
                self.problems.append(text)
        return found

    def _send(self, method: str, **parameters: Any) -> int:
        self._number += 1
        session = {"sessionId": self._session} if self._session else {}
        message = {"id": self._number, "method": method, "params": parameters, **session}
        os.write(self._to, json.dumps(message).encode() + b"\0")
        return self._number

    def _call(self, method: str, **parameters: Any) -> dict[str, Any]:
        number = self._send(method, **parameters)
        while (reply := self._receive()).get("id") != number:
            self._events.append(reply)
        if "error" in reply:
            raise AssertionError(f"{method}: {reply['error']}")
        result: dict[str, Any] = reply["result"]
        return result

    def _wait_for(self, method: str) -> None:
        while not any(event.get("method") == method for event in self._events):
            self._events.append(self._receive())

    def show(self, width: int, height: int = 900, *, dark: bool = False) -> None:
        """Let the window have this size, and its user prefer light or dark."""
        self._call(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < 600
        )
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self._call("Emulation.setEmulatedMedia", features=[scheme])

    def type_when_asked(self, password: str) -> None:
        """Type this password, and no name, whenever the browser asks for one; *nasked* counts how often it does."""
        self._password = password
        self._call("Fetch.enable", handleAuthRequests=True)

    def open(self, url: str, *, scripts: bool = True) -> None:
        """Open a page, and wait until it is loaded."""
        self._call("Emulation.setScriptExecutionDisabled", value=not scripts)
        self._events.clear()
        self._call("Page.navigate", url=url)
        self._wait_for("Page.loadEventFired")

    def run(self, expression: str) -> Any:
        """Return the value of an expression of JavaScript, of a promise what it becomes."""
        result = self._call("Runtime.evaluate", expression=expression, awaitPromise=True, returnByValue=True)
        if "exceptionDetails" in result:
            raise AssertionError(str(result["exceptionDetails"]))
        return result["result"].get("value")

    def until(self, condition: str) -> None:
        """Wait until an expression is true, as it is at the latest after `PATIENCE`."""
        script = (
            f"new Promise((go, stop) => {{ const end = Date.now() + {int(PATIENCE * 1000)};"
            f" const look = () => ({condition}) ? go() : Date.now() > end ? stop(new Error('too late'))"
            " : setTimeout(look, 20); look(); })"
        )
        while True:
            try:
                self.run(script)
            except AssertionError as error:
                if "navigated" not in str(error):  # else another page has taken the place of the one that was asked
                    raise AssertionError(f"never true: {condition}; problems: {self.problems}") from error
            else:
                return

    def press(self, *keys: str, shift: bool = False) -> None:
        """Press keys, one after the other, perhaps with Shift."""
        for key in keys:
            shown = {"text": "\r" if key == "Enter" else key} if len(key) == 1 or key == "Enter" else {}
            code = {"key": key, "code": key, "windowsVirtualKeyCode": KEYS[key], "modifiers": 8 if shift else 0}
            self._call("Input.dispatchKeyEvent", type="keyDown", **code, **shown)
            self._call("Input.dispatchKeyEvent", type="keyUp", **code)

    def _at(self, selector: str, across: float, down: float) -> dict[str, float]:
        """Where a place of an element is in the window, which scrolls there; both shares are from 0 to 1."""
        self.run(f"document.querySelector({json.dumps(selector)}).scrollIntoView({{block: 'center'}})")
        measured = f"document.querySelector({json.dumps(selector)}).getBoundingClientRect()"
        box = self.run(f"(b => [b.left, b.top, b.width, b.height])({measured})")
        return {"x": box[0] + across * box[2], "y": box[1] + down * box[3]}

    def point(self, selector: str, across: float, down: float) -> None:
        """Move the pointer to a place of an element."""
        self._call("Input.dispatchMouseEvent", type="mouseMoved", **self._at(selector, across, down))

    def click(self, selector: str, across: float = 0.5, down: float = 0.5, *, count: int = 1) -> None:
        """Click at a place of an element."""
        at = self._at(selector, across, down)
        for number in range(1, count + 1):
            for kind in ("mousePressed", "mouseReleased"):
                self._call("Input.dispatchMouseEvent", type=kind, button="left", clickCount=number, **at)

    def tap(self, selector: str, across: float = 0.5, down: float = 0.5) -> None:
        """Touch a place of an element with a finger."""
        self._call("Emulation.setTouchEmulationEnabled", enabled=True)
        at = self._at(selector, across, down)
        self._call("Input.dispatchTouchEvent", type="touchStart", touchPoints=[at])
        self._call("Input.dispatchTouchEvent", type="touchEnd", touchPoints=[])
        self._call("Emulation.setTouchEmulationEnabled", enabled=False)

    def screenshot(self, path: Path, *, whole: bool = True) -> None:
        """Write a picture of the page, or of what fits into the window, to *path*."""
        data = self._call("Page.captureScreenshot", captureBeyondViewport=whole)["data"]
        path.write_bytes(base64.b64decode(data))


@contextmanager
def browsing(directory: Path, *options: str) -> Iterator[Page]:
    """Run Chromium for the length of a block, with a profile in *directory*."""
    command = [
        "chromium", "--headless", "--no-sandbox", "--disable-dev-shm-usage", "--remote-debugging-pipe",
        "--hide-scrollbars", f"--user-data-dir={directory}", *options,
    ]  # fmt: skip
    with _pipes() as (theirs, ours):
        process = subprocess.Popen(
            ["bash", "-c", f'exec "$@" 3<&{theirs[0]} 4>&{theirs[1]}', "bash", *command],
            pass_fds=theirs,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        for end in theirs:
            os.close(end)
        try:
            yield Page(*ours)
        finally:
            process.terminate()
            process.wait(PATIENCE)


@contextmanager
def _pipes() -> Iterator[tuple[Sequence[int], Sequence[int]]]:
    their_input, to_browser = map(_moved, os.pipe())
    from_browser, their_output = map(_moved, os.pipe())
    try:
        yield (their_input, their_output), (to_browser, from_browser)
    finally:
        os.close(to_browser)
        os.close(from_browser)


def _moved(descriptor: int) -> int:
    """Move a descriptor out of the way of 3 and 4, which the browser reads and writes."""
    moved = fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, 10)
    os.close(descriptor)
    return moved
