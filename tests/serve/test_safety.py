"""Who may ask: hosts, pages of other origins, tokens."""

import base64
from pathlib import Path

import pytest

from shardfs.errors import UsageError
from shardfs.serve.options import ServeOptions, read_token
from tests.support.datasets import age
from tests.support.serving import Served, served

TOKEN = "a-token-of-some-length"


@pytest.fixture
def source(tmp_path: Path) -> Path:
    directory = tmp_path / "data.zarr"
    directory.mkdir()
    (directory / "zarr.json").write_text('{"zarr_format": 3, "node_type": "group"}')
    (directory / "notes.txt").write_text("notes")
    (directory / "page.html").write_text("<script>alert(1)</script>")
    age(directory)
    return directory


def test_a_loopback_server_answers_to_names_of_this_machine_alone(site: Served) -> None:
    """A page whose host name resolves to 127.0.0.1 would else be one of this origin."""
    for host in ("localhost", "LOCALHOST:80", "127.0.0.1", "127.9.9.9:1", "[::1]:8000", "x.localhost", "localhost."):
        assert site.ask("/notes.txt", Host=host).status == 200, host
    for host in ("example.org", "example.org:8000", "localhost.example.org", "127.0.0.1.example.org", "", "10.0.0.1"):
        reply = site.ask("/notes.txt", Host=host)
        assert (reply.status, reply.body.startswith(b"notes")) == (421, False), host
    for host in (
        *("[::1].evil.com", "[::1]evil.com", "127.0.0.1:80@evil.com", "127.0.0.1:evil.com", "[::1", "::1", "a b"),
        *("localhost:8000:1", "localhost/evil.com", "localhost?", "user@localhost", "[::1%evil.com]", "[127.0.0.1]"),
        *("127.0.0.1,evil.com", "localhost:123456", "\xb9localhost"),
    ):
        reply = site.ask("/notes.txt", Host=host)
        assert (reply.status, reply.body.startswith(b"notes")) == (400, False), host
    for target in ("http://[::1].evil.com/notes.txt", "http://127.0.0.1:80@evil.com/notes.txt"):
        assert site.ask(target, Host="localhost").status == 400
    assert site.ask("http://example.org/notes.txt", Host="localhost").status == 421
    for target in ("/-/healthy", "/"):
        assert site.ask(target, Host="example.org").status == 421


def test_pages_of_any_origin_may_read_unless_origins_are_named(source: Path, site: Served) -> None:
    for target in ("/notes.txt", "/nowhere", "/"):
        reply = site.ask(target, Origin="https://viewer.example")
        assert reply["Access-Control-Allow-Origin"] == "*"
        exposed = set(reply["Access-Control-Expose-Headers"].split(", "))
        assert {"Content-Range", "Content-Length", "ETag", "Accept-Ranges"} <= exposed
    with served(source, cors=("https://viewer.example",)) as site:
        reply = site.ask("/notes.txt", Origin="https://viewer.example")
        assert (reply["Access-Control-Allow-Origin"], reply["Vary"]) == ("https://viewer.example", "Origin")
        for headers in ({"Origin": "https://other.example"}, {}):
            reply = site.ask("/notes.txt", **headers)
            assert (reply["Access-Control-Allow-Origin"], reply["Vary"]) == (None, "Origin")


def preflight(site: Served, origin: str, method: str) -> dict[str, str]:
    reply = site.ask(
        "/notes.txt",
        "OPTIONS",
        Origin=origin,
        Access_Control_Request_Method=method,
        Access_Control_Request_Headers="range, authorization",
        Access_Control_Request_Private_Network="true",
    )
    assert (reply.status, reply.body) == (204, b"")
    return {name.lower(): value for name, value in reply.headers.items()}


def test_a_preflight_repeats_only_what_names_headers(site: Served) -> None:
    head = {"Origin": "https://viewer.example", "Access_Control_Request_Method": "GET"}
    for asked, told in (("range, x-one", "range, x-one"), ("x-\xe9", None)):
        reply = site.ask("/", "OPTIONS", **head, Access_Control_Request_Headers=asked)
        assert (reply.status, reply["Access-Control-Allow-Headers"]) == (204, told)


def test_a_preflight_is_answered_for_a_day_and_for_pages_of_public_sites(source: Path, site: Served) -> None:
    found = preflight(site, "https://viewer.example", "GET")
    assert found["access-control-allow-origin"] == "*"
    assert found["access-control-allow-methods"] == "GET, HEAD, OPTIONS"
    assert found["access-control-allow-headers"] == "range, authorization"
    assert found["access-control-allow-private-network"] == "true"
    assert found["access-control-max-age"] == "86400"
    with served(source, cors=("https://viewer.example",)) as site:
        assert "access-control-allow-methods" not in preflight(site, "https://other.example", "GET")


def test_only_named_origins_may_write(source: Path) -> None:
    with served(source, write=True) as site:
        assert "PUT" not in preflight(site, "https://viewer.example", "PUT")["access-control-allow-methods"]
        assert site.ask("/notes.txt", "PUT", b"x", Origin="https://viewer.example").status == 403
        assert site.ask("/notes.txt", "DELETE", Origin="null").status == 403
        assert site.ask("/-/flush", "POST", b"", Origin="https://viewer.example").status == 403
    assert (source / "notes.txt").read_text() == "notes"
    with served(source, write=True, cors=("*", "https://viewer.example")) as site:
        assert "PUT" in preflight(site, "https://viewer.example", "PUT")["access-control-allow-methods"]
        assert "PUT" not in preflight(site, "https://other.example", "PUT")["access-control-allow-methods"]


def test_a_page_without_an_origin_is_no_page_that_was_named(source: Path) -> None:
    """A page in a sandbox, or of a file, says `null`, which may be anybody."""
    private = "access-control-allow-private-network"
    for cors in (("*",), ("https://viewer.example",), ("*", "https://viewer.example")):
        with served(source, write=True, cors=cors) as site:
            for target, method in (("/notes.txt", "PUT"), ("/notes.txt", "DELETE"), ("/-/flush", "POST")):
                assert site.ask(target, method, b"", Origin="null").status == 403
            asked = preflight(site, "null", "PUT")
            reply = site.ask("/notes.txt", Origin="null")
            assert reply["Access-Control-Allow-Credentials"] is None
            if "*" in cors:
                assert (reply["Access-Control-Allow-Origin"], private in asked) == ("*", True)
                assert "PUT" not in asked["access-control-allow-methods"]
            else:
                assert reply["Access-Control-Allow-Origin"] is None
                assert not [name for name in asked if name.startswith("access-control-allow")]
                assert private not in preflight(site, "https://other.example", "GET")
    with pytest.raises(UsageError):
        ServeOptions(cors=("null",))
    assert (source / "notes.txt").read_text() == "notes"


def test_with_a_token_nobody_else_is_told_anything(source: Path) -> None:
    with served(source, token=TOKEN) as site:
        for target in ("/notes.txt", "/nowhere", "/", "/-/nothing"):
            for headers in ({}, {"Authorization": "Bearer wrong"}, {"Authorization": f"Basic {TOKEN}"}):
                reply = site.ask(target, **headers)
                challenges = reply.headers.get_all("WWW-Authenticate")
                assert (reply.status, challenges) == (401, ['Basic realm="shardfs"', 'Bearer realm="shardfs"'])
                assert b"notes" not in reply.body
            assert site.ask(target, Authorization=f"Bearer {TOKEN}é").status == 401
        assert site.ask("/notes.txt", Authorization=f"Bearer {TOKEN}").body == b"notes"
        assert site.ask("/notes.txt", Authorization=f"bearer  {TOKEN} ").body == b"notes"
        assert site.ask("/-/healthy").status == 200
        assert preflight(site, "https://viewer.example", "GET")["access-control-allow-methods"]


def test_the_token_is_a_password_too_of_any_user(source: Path) -> None:
    def basic(text: str) -> str:
        return f"Basic {base64.b64encode(text.encode()).decode()}"

    with served(source, token=TOKEN) as site:
        for right in (basic(f"anybody:{TOKEN}"), basic(f":{TOKEN}"), basic(f"é:{TOKEN}").replace("Basic", "bASIC ")):
            assert site.ask("/notes.txt", Authorization=right).body == b"notes"
        for wrong in (
            basic(TOKEN), basic(f"{TOKEN}:"), basic(f"a:b:{TOKEN}"), basic(f"a:{TOKEN} "), basic("a:"), "Basic",
            "Basic ????", f"Basic {TOKEN}", f"Digest {TOKEN}", basic(f"a:{TOKEN}").replace("Basic", "Bearer"),
        ):  # fmt: skip
            assert site.ask("/notes.txt", Authorization=wrong).status == 401, wrong


def test_a_page_of_another_origin_writes_and_reads_nothing_by_a_password_that_the_browser_adds(source: Path) -> None:
    password = {"Authorization": f"Basic {base64.b64encode(f':{TOKEN}'.encode()).decode()}"}
    with served(source, token=TOKEN, write=True, cors=("*", "https://viewer.example")) as site:
        for target, method in (("/notes.txt", "PUT"), ("/notes.txt", "DELETE"), ("/-/flush", "POST")):
            assert site.ask(target, method, b"", Origin="https://other.example", **password).status == 403
        for origin in ("https://other.example", "https://viewer.example"):
            reply = site.ask("/notes.txt", Origin=origin, **password)
            assert reply["Access-Control-Allow-Credentials"] is None  # so a browser shows it to no such page
    assert (source / "notes.txt").read_text() == "notes"


def test_no_file_of_a_dataset_is_run_by_a_browser(site: Served) -> None:
    for name in ("page.html", "notes.txt", "zarr.json"):
        reply = site.ask(f"/{name}")
        assert reply["X-Content-Type-Options"] == "nosniff"
        assert "html" not in reply["Content-Type"]


def test_options_that_would_let_everybody_write_or_mean_nothing_are_refused() -> None:
    for wrong in (
        {"write": True, "listen": "0.0.0.0:8000"},
        {"write": True, "listen": "[::]:8000"},
        {"write": True, "view": "npy"},
        {"listen": "127.0.0.1"},
        {"listen": "127.0.0.1:99999"},
        {"cors": ("viewer.example",)},
        {"cors": ("https://viewer.example/path",)},
        {"shards": (2,)},
    ):
        with pytest.raises(UsageError):
            ServeOptions(**wrong)  # type: ignore[arg-type]
    for right in ({"write": True}, {"write": True, "listen": "0.0.0.0:1", "token": TOKEN}, {"listen": "[::1]:0"}):
        ServeOptions(**right)  # type: ignore[arg-type]
    assert TOKEN not in repr(ServeOptions(token=TOKEN))


def test_a_token_file_is_secret_and_its_token_long_enough(tmp_path: Path) -> None:
    path = tmp_path / "token"
    for content, mode in (("", 0o600), ("short", 0o600), ("x y" * 10, 0o600), (TOKEN, 0o644), ("ä" * 20, 0o600)):
        path.write_text(content)
        path.chmod(mode)
        with pytest.raises(UsageError, match="token"):
            read_token(str(path))
    path.write_text(f"{TOKEN}\n")
    path.chmod(0o600)
    assert read_token(str(path)) == TOKEN
    with pytest.raises(UsageError, match="cannot be read"):
        read_token(str(tmp_path / "nowhere"))
