"""REDbot judges how `shardfs serve` speaks HTTP: caching, conditions, and the grammar of each header."""

import json
from pathlib import Path

import numpy as np

from tests.support.clients import REDBOT
from tests.support.datasets import age
from tests.support.images import image, put, write_group
from tests.support.serving import served

KNOWN = {
    "IMS_FULL": "several versions may belong to one second, so a date never tells that there is no newer one",
    "FRESHNESS_HEURISTIC": "it overlooks no-cache, with which no cache may take a reply for fresh",
}
"""What it complains about, and why it is as it is."""

JUDGE = """
import json, sys
from configparser import ConfigParser
import thor
from redbot.resource import HttpResource

options = ConfigParser()
options.read_dict({"redbot": {"enable_local_access": "True"}})
found = {}

def judge(urls):
    if not urls:
        return thor.stop()
    resource = HttpResource(options["redbot"])
    resource.set_request(urls[0])

    @thor.events.on(resource)
    def check_done():
        parts = [resource, *resource.subreqs.values()]
        notes = [note for part in parts for note in part.response.notes]
        notes = {type(note).__name__: [note.level.value, str(note.summary)] for note in notes}
        found[urls[0]] = {"status": resource.response.status_code, "notes": notes}
        judge(urls[1:])

    resource.check()

judge(sys.argv[2:])
thor.run()
with open(sys.argv[1], "w") as file:
    json.dump(found, file)
"""


def test_redbot_finds_nothing_wrong(tmp_path: Path) -> None:
    source = tmp_path / "data.zarr"
    write_group(source)
    image(source / "cells", 64, 32)
    put(source / "volume", np.random.default_rng(5).integers(0, 99, (4, 8, 8)).astype("uint16"), (4, 8, 8), (2, 4, 4))
    (source / "notes.txt").write_bytes(b"some notes" * 50)
    (source / "large.bin").write_bytes(bytes(range(256)) * 10_000)
    age(source)
    targets = [
        *(f"/{view}volume/{name}" for view in ("", "-/v3/", "-/decoded/v3/") for name in ("c/0/0/0", "zarr.json")),
        "/-/v2/volume/.zarray", "/-/v2/volume/0.0.0", "/-/npy/volume.npy", "/notes.txt", "/large.bin", "/", "/volume/",
        "/-/plane/volume", "/-/page.css", "/-/page.js", "/-/icon.svg", "/-/healthy", "/-/metrics", "/nowhere",
    ]  # fmt: skip
    with served(source) as site:
        REDBOT.run(JUDGE, tmp_path / "notes.json", *(f"{site.url}{target}" for target in targets))
        found = {
            url.removeprefix(site.url): judged
            for url, judged in json.loads((tmp_path / "notes.json").read_text()).items()
        }
    assert [*found] == targets
    wrong = {
        (target, name): summary
        for target, judged in found.items()
        for name, (level, summary) in judged["notes"].items()
        if level in ("bad", "warning") and name not in KNOWN
    }
    assert not wrong
    for target in ("/notes.txt", "/large.bin"):
        good = {name for name, (level, _) in found[target]["notes"].items() if level == "good"}
        assert good >= {"CL_CORRECT", "INM_304", "FRESHNESS_FRESH"}, target
