"""s3:// sources: mounted as a directory is, or refused with what is wrong with server, network or permissions."""

import json
import os
import ssl
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path

import pytest
import trustme

import shardfs
from shardfs.errors import ShardfsError, StoreError
from tests.cli.conftest import Background
from tests.stores.s3.clients import WHOLE, client_of, run
from tests.support import commands
from tests.support.commands import SOURCE, one_line_of
from tests.support.corpus import LITTLE, array, sharding
from tests.support.daemons import daemon_of
from tests.support.datasets import files_below, store
from tests.support.mounting import Mounter, mount_points
from tests.support.s3_faults import Ignore, Reply
from tests.support.s3_proxy import S3Proxy
from tests.support.s3_server import ACCESS_KEY, SECRET_KEY, Bucket, guard, guarded, make_user

PREFIX = "some path/data é 100%.zarr"
TOKEN = "secret-session-token"
SHARDED = array((8, 12), (4, 6), sharding((2, 3)))
GROUP = {"zarr_format": 3, "node_type": "group", "attributes": {"made by": "a test"}}


@pytest.fixture
def local(tmp_path: Path) -> Path:
    """A dataset, which is in the bucket too."""
    store(tmp_path / "local/image", SHARDED, absent=[(3, 3)])
    store(tmp_path / "local/plain", array((4, 6), (2, 3), LITTLE))
    (tmp_path / "local/zarr.json").write_text(json.dumps(GROUP))
    return tmp_path / "local"


@pytest.fixture
def bucket(s3_bucket: Bucket, local: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Bucket:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("AWS_ENDPOINT_URL", s3_bucket.endpoint_url)
    monkeypatch.setenv("AWS_SESSION_TOKEN", TOKEN)
    s3_bucket.upload(local, PREFIX)
    return s3_bucket


def test_a_bucket_is_mounted_in_the_background_and_shown_like_a_directory(
    background: Background, bucket: Bucket, local: Path, place: Path, mount: Mounter
) -> None:
    url = bucket.url(PREFIX)
    done = background(url, place, PYTHONHASHSEED="0")  # so that its process is not a prepared one
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith(f"{url} is mounted at {place}, read-only (log: ")
    assert files_below(place) == files_below(mount(local).path)
    counts = commands.run_json("stats", "--json", place)["store"]
    assert counts["requests"]["GetObject"] > 0
    assert counts["conflicts"] == counts["retries"] == 0
    (log,) = background.logs.glob("*.log")
    assert "WARNING" not in log.read_text()
    command_line = Path(f"/proc/{daemon_of(place)}/cmdline").read_text().split("\0")
    assert url in command_line
    assert not {SECRET_KEY, TOKEN} & set(command_line)
    assert commands.run("umount", place).returncode == 0


def test_writes_are_in_the_bucket_when_umount_returns(background: Background, bucket: Bucket, place: Path) -> None:
    assert background("--write", bucket.url(PREFIX), place).returncode == 0
    (place / "image/c/0/0").write_bytes(b"something else, and longer")
    (place / "notes.txt").write_bytes(b"a plain file")
    assert commands.run("flush", place).returncode == 0
    assert commands.run_json("stats", "--json", place)["store"]["conflicts"] == 0, "nobody else wrote"
    done = commands.run("umount", place)
    assert (done.returncode, done.stderr) == (0, "")
    assert shardfs.open(bucket.url(PREFIX))["image"].read_chunk((0, 0)) == b"something else, and longer"
    assert bucket.get(f"{PREFIX}/notes.txt") == b"a plain file"


def failed(background: Background, place: Path, words: list[str], source: str, **variables: str) -> str:
    """What a command says that cannot read *source*."""
    if words[0] == "mount":
        done = background(*words[1:], source, place, **variables)
        assert str(place) not in mount_points()
        assert not os.listdir(place)
    else:
        done = commands.run(*words, source, **variables)
    said = one_line_of(done, SOURCE)
    for text in (said, *(log.read_text() for log in background.logs.glob("*.log"))):
        assert SECRET_KEY not in text
        assert TOKEN not in text
    return said


def test_a_server_without_conditions_is_written_only_with_single_writer(
    background: Background, bucket: Bucket, local: Path, unconditional_bucket: Bucket, place: Path
) -> None:
    unconditional_bucket.upload(local, PREFIX)
    url, server = unconditional_bucket.url(PREFIX), {"AWS_ENDPOINT_URL": unconditional_bucket.endpoint_url}
    assert "profile" in failed(background, place, ["mount", "--profile", "nobody"], bucket.url(PREFIX))
    for words in (["mount", "--write"], ["compact"], ["recover", "--apply"]):
        assert "--single-writer" in failed(background, place, words, url, **server)
    for words in (["compact"], ["recover", "--apply"]):
        done = commands.run(*words, "--single-writer", url, **server)
        assert (done.returncode, done.stderr) == (0, "")
    assert background("--write", "--single-writer", url, place, **server).returncode == 0
    (place / "image/c/0/0").write_bytes(b"new")
    assert commands.run("umount", place).returncode == 0
    assert commands.run_json("verify", "--json", url, **server)["sound"]


def test_a_server_without_ranges_is_refused(
    bucket: Bucket, s3_proxy: S3Proxy, background: Background, place: Path, mount: Mounter
) -> None:
    """Every index and every chunk would be the whole shard, or an error at each read."""
    variables = bucket.through(s3_proxy.url).environment
    mounted = mount(bucket.url(PREFIX), env=variables)
    s3_proxy.fail("GetObject", Ignore("range"), times=None)
    for done in (
        commands.run("info", bucket.url(), **variables),
        background(bucket.url(PREFIX), place, **variables),
    ):
        said = one_line_of(done, SOURCE)
        assert said.startswith(f"{bucket.url()}")
        assert "cannot be read: " in said
        assert "asked for a range, the server gives the whole object" in said
    mounted.expect("gives the whole object")  # also if it stops to give them
    with pytest.raises(OSError, match="Input/output error"):
        (mounted.path / "image/c/0/0").read_bytes()


UNTRUSTED = {
    # whether the client knows the authority; the address in the certificate; how many days it lasts; what is said
    "authority": (False, "127.0.0.1", 1, "its certificate is signed by an unknown authority; AWS_CA_BUNDLE can name"),
    "expired": (True, "127.0.0.1", -1, "its certificate has expired"),
    "name": (True, "127.0.0.2", 1, "its certificate is for another name"),
}


@pytest.mark.parametrize("fault", UNTRUSTED)
def test_the_reason_for_not_trusting_a_server_is_told(
    bucket: Bucket,
    background: Background,
    place: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    fault: str,
) -> None:
    is_known, address, days, words = UNTRUSTED[fault]
    authority, context = trustme.CA(), ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.cert_pem.write_to_path(tmp_path / "authority.pem")
    authority.issue_cert(address, not_after=datetime.now(UTC) + timedelta(days)).configure_cert(context)
    with S3Proxy(bucket.endpoint_url, tls=context) as proxy:
        variables = bucket.through(proxy.url).environment
        if is_known:
            variables["AWS_CA_BUNDLE"] = str(tmp_path / "authority.pem")
        said = one_line_of(background(bucket.url(PREFIX), place, **variables), SOURCE)
        assert f"{proxy.url} is not trusted: " in said
        assert words in said
        for name, value in variables.items():
            monkeypatch.setenv(name, value)
        with pytest.raises(StoreError, match=words.partition(";")[0]):
            run(partial(client_of(bucket.through(proxy.url)).client.get, "key", WHOLE))


@pytest.mark.parametrize(
    ("style", "host", "paths"),
    [
        ("virtual", "bucket.s3.example.test:9000", ["", "key", "key"]),
        ("auto", "s3.example.test:9000", ["bucket", "bucket/key", "bucket/key"]),
    ],
)
def test_both_libraries_use_the_addressing_style_of_the_profile(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    aws_environment: None,
    s3_proxy: S3Proxy,
    style: str,
    host: str,
    paths: list[str],
) -> None:
    keys = f"aws_access_key_id = {ACCESS_KEY}\naws_secret_access_key = {SECRET_KEY}\nregion = us-east-1\n"
    (tmp_path / "config").write_text(f"[profile lab]\n{keys}s3 =\n    addressing_style = {style}\n")
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    for name in ("HTTP_PROXY", "http_proxy"):  # which is asked for any name
        monkeypatch.setenv(name, s3_proxy.url)
    s3_proxy.fail(None, Reply(404, "NoSuchKey"), times=None)
    client = client_of(Bucket("bucket", "http://s3.example.test:9000"), profile="lab").client
    for ask in (partial(client.list_page, ""), partial(client.get, "key", WHOLE), partial(client.delete, "key")):
        with suppress(ShardfsError):
            run(ask)
    asked = [(request.headers["host"], f"{request.bucket}/{request.key}".strip("/")) for request in s3_proxy.log]
    assert asked == [(host, path) for path in paths]


def test_a_source_that_cannot_be_listed_is_mounted_by_its_documents(
    bucket: Bucket, s3_proxy: S3Proxy, mount: Mounter, local: Path
) -> None:
    """S3 says then of everything that is not there that it may not be read: that is no hole."""
    s3_proxy.fail("ListObjectsV2", Reply(403, "AccessDenied"), times=None)
    for missing in ("image/c/1/1", "plain/c/1/1"):
        bucket.delete(f"{PREFIX}/{missing}")
    for operation in ("HeadObject", "GetObject"):
        for name in (".zgroup", "nothing", "c/1/1"):
            s3_proxy.fail(operation, Reply(403, "AccessDenied"), key=name, times=None)
    mounted = mount(bucket.url(PREFIX), env=bucket.through(s3_proxy.url).environment)
    mounted.expect("AccessDenied", "403", "refused")
    assert (mounted.path / "zarr.json").read_bytes() == (local / "zarr.json").read_bytes()
    assert "sharding" not in (mounted.path / "image/zarr.json").read_text()
    chunk = (mounted.path / "image/c/0/0").read_bytes()
    assert len(chunk) == 24
    assert not (mounted.path / ".zgroup").exists()
    with pytest.raises(PermissionError):
        os.stat(mounted.path / "nothing")
    os.stat(mounted.path / "image/c")
    with pytest.raises(PermissionError):
        (mounted.path / "image/c/3/3").read_bytes()
    with pytest.raises(PermissionError):
        os.listdir(mounted.path)
    assert (mounted.path / "image/c/0/1").read_bytes() != chunk
    translated = mount(bucket.url(PREFIX), env=bucket.through(s3_proxy.url).environment, arguments=["--view=v2"])
    translated.expect("AccessDenied", "403", "refused")
    assert (translated.path / "plain/0.0").read_bytes() == (local / "plain/c/0/0").read_bytes()
    with pytest.raises(PermissionError):
        (translated.path / "plain/1.1").read_bytes()


def test_the_documented_permissions_are_enough(aws_environment: None, mount: Mounter, local: Path) -> None:
    """By the rules of AWS, as moto has them."""
    with guarded() as server:
        bucket = server.make_bucket()
        bucket.upload(local, PREFIX)
        all_of_it, objects = f"arn:aws:s3:::{bucket.name}", f"arn:aws:s3:::{bucket.name}/*"
        gets = make_user(server, "gets", (["s3:GetObject"], objects))
        reads = make_user(server, "reads", (["s3:GetObject"], objects), (["s3:ListBucket"], all_of_it))
        writes = make_user(
            server,
            "writes",
            (["s3:GetObject", "s3:PutObject", "s3:DeleteObject", "s3:AbortMultipartUpload"], objects),
            (["s3:ListBucket", "s3:ListBucketMultipartUploads"], all_of_it),
        )
        guard(server)
        chunk = (mount(bucket.url(PREFIX), env=reads).path / "image/c/0/0").read_bytes()
        assert len(chunk) == 24
        unlisted = mount(bucket.url(PREFIX), env=gets)
        unlisted.expect("AccessDenied")
        assert (unlisted.path / "image/c/0/0").read_bytes() == chunk
        with pytest.raises(PermissionError):
            os.listdir(unlisted.path)
        written = mount(bucket.url(PREFIX), env=writes, arguments=["--write", "--single-writer"])
        (written.path / "image/c/0/0").write_bytes(chunk[::-1])
        (written.path / "notes").write_text("text")
        written.unmount()
        again = mount(bucket.url(PREFIX), env=reads)
        assert (again.path / "image/c/0/0").read_bytes() == chunk[::-1]
        assert (again.path / "notes").read_text() == "text"
        for mounted in (unlisted, again):
            mounted.unmount()


def test_without_permission_to_list_nothing_is_reported_as_missing(
    aws_environment: None, mount: Mounter, local: Path
) -> None:
    """Also where the server says of an object that it is not there: others may lie below that name."""
    with guarded() as server:
        bucket = server.make_bucket()
        bucket.upload(local, PREFIX)
        gets = make_user(server, "gets", (["s3:GetObject"], f"arn:aws:s3:::{bucket.name}/*"))
        guard(server)
        mounted = mount(bucket.url(PREFIX), env=gets)
        mounted.expect("AccessDenied", "without permission to list")
        for name in ("plain/c/0/0", "plain/c", "nothing", "nothing/zarr.json"):
            with pytest.raises(PermissionError):
                os.stat(mounted.path / name)
        for name in (".zgroup", ".DS_Store", "plain/.hidden"):
            assert not (mounted.path / name).exists()
        mounted.unmount()
