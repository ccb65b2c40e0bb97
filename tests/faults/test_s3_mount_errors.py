"""What keeps a bucket from being mounted or looked at: one line with the way out, before `run` loses patience."""

import re
from collections.abc import Callable, Iterator, Mapping
from itertools import cycle
from pathlib import Path

import pytest

from tests.support.commands import SOURCE, one_line_of, run
from tests.support.hasty import hasty
from tests.support.mounting import mount_points
from tests.support.s3_faults import Fault, Hang, Reply
from tests.support.s3_proxy import S3Proxy
from tests.support.s3_server import ACCESS_KEY, SECRET_KEY, Bucket

PREFIX = "data.zarr"
_LOGGED = re.compile(r"\d{4}-\d\d-\d\d \S+ WARNING .*trying again")

ANSWERS: dict[str, tuple[Fault, str]] = {
    "expired-token": (Reply(403, "ExpiredToken"), "the credentials have expired, or are wrong: renew them"),
    "wrong-key": (Reply(403, "InvalidAccessKeyId"), "the credentials are wrong, or not for this endpoint"),
    "wrong-secret": (Reply(403, "SignatureDoesNotMatch"), "the credentials are wrong, or not for this endpoint"),
    "other-region": (
        Reply(301, "PermanentRedirect", {"x-amz-bucket-region": "eu-west-7"}),
        "is in another region (eu-west-7): --region eu-west-7",
    ),
    "malformed": (Reply(400, "AuthorizationHeaderMalformed"), "is in another region; name it with --region"),
    "wrong-clock": (Reply(403, "RequestTimeTooSkewed"), "the clock of this machine is wrong"),
    "may-not-list": (Reply(403, "AccessDenied"), "AccessDenied 403): no permission"),
    "broken": (Reply(500, "InternalError"), "failed 6 times: InternalError 500"),
}
WAYS = ["info", "mount", "mount --write --foreground --log-level=warning"]


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Path]:
    path = tmp_path / "mnt"
    path.mkdir()
    yield path
    assert str(path) not in mount_points()


@pytest.fixture
def bucket(s3_bucket: Bucket) -> Bucket:
    s3_bucket.put(f"{PREFIX}/zarr.json", b'{"zarr_format": 3, "node_type": "group"}')
    return s3_bucket


Fail = Callable[..., str]


@pytest.fixture
def fail(place: Path, tmp_path: Path) -> Fail:
    """`fail(way, url, variables)` runs a command that cannot do its work; returns the line that says why."""

    def run_it(way: str, url: str, variables: Mapping[str, str], *options: str) -> str:
        command, *others = way.split()
        arguments = [*others, *options, url, *([place] if command == "mount" else [])]
        done = run(command, *arguments, **{"XDG_STATE_HOME": str(tmp_path / "state"), **variables})
        said = done.stderr.splitlines(keepends=True)
        done.stderr = "".join(line for line in said if not _LOGGED.match(line))  # of what is tried again
        line = one_line_of(done, SOURCE)
        written = [file.read_text() for file in (tmp_path / "state").rglob("*.log")]
        for text in ("".join(said), *written):
            for secret in (ACCESS_KEY, SECRET_KEY, "Signature=", "Authorization", "made by the test"):
                assert secret not in text
        return line

    return run_it


@pytest.mark.parametrize(("name", "way"), list(zip(ANSWERS, cycle(WAYS))))
def test_every_answer_is_told_from_the_others(
    bucket: Bucket, s3_proxy: S3Proxy, fail: Fail, name: str, way: str
) -> None:
    fault, words = ANSWERS[name]
    s3_proxy.fail(None, fault, times=None)
    line = fail(way, bucket.url(PREFIX), bucket.through(s3_proxy.url).environment)
    assert line.startswith(f"{bucket.url(PREFIX)} cannot be read: ")
    assert words in line


NO_KEYS = {"AWS_ACCESS_KEY_ID": "", "AWS_SECRET_ACCESS_KEY": ""}


@pytest.mark.parametrize(
    ("way", "key", "variables", "words"),
    [
        ("info", "nothing/here", {}, "nothing is stored at "),
        ("mount --write", "nothing/here", {}, "nothing is stored at "),
        (
            "mount --write",
            PREFIX,
            NO_KEYS,
            "`aws sso login`, --profile, --anonymous",
        ),
        ("info", PREFIX, {"AWS_ENDPOINT_URL": "http://127.0.0.1:1"}, "cannot be reached: the connection is refused"),
    ],
)
def test_what_cannot_be_found_is_named(
    bucket: Bucket, fail: Fail, way: str, key: str, variables: dict[str, str], words: str
) -> None:
    assert words in fail(way, bucket.url(key), bucket.environment | variables)


def test_a_bucket_that_does_not_exist(bucket: Bucket, fail: Fail) -> None:
    line = fail("mount", "s3://no-such-bucket-anywhere/data.zarr", bucket.environment)
    assert line.endswith(
        "/data.zarr cannot be read: the bucket no-such-bucket-anywhere does not exist; check its name, and "
        "--endpoint-url if it is not on AWS"
    )


def test_a_server_that_hangs_is_given_up(bucket: Bucket, s3_proxy: S3Proxy, tmp_path: Path, fail: Fail) -> None:
    hang = Hang()
    s3_proxy.fail(None, hang, times=None)
    variables = bucket.through(s3_proxy.url).environment | hasty(silence=30.0, first=2.0)
    line = fail("mount", bucket.url(PREFIX), variables)
    assert line.endswith(f"{s3_proxy.url} does not answer within 2 seconds")
    hang.release()


def test_a_server_that_asks_for_fewer_requests_is_told_from_one_that_hangs(
    bucket: Bucket, s3_proxy: S3Proxy, fail: Fail
) -> None:
    s3_proxy.fail(None, Reply(503, "SlowDown"), times=None)
    variables = bucket.through(s3_proxy.url).environment | hasty(pause=10.0, first=2.0)
    line = fail("mount", bucket.url(PREFIX), variables)
    assert line.endswith(f"{s3_proxy.url} does not answer within 2 seconds (SlowDown 503)")


@pytest.mark.parametrize(
    ("way", "operation", "fault", "words"),
    [
        ("mount --write", "PutObject", Reply(403, "AccessDenied"), "cannot be written: PutObject of "),
        (
            "mount --write --foreground --log-level=warning",
            "CreateMultipartUpload",
            Reply(403, "AccessDenied"),
            "cannot be written: CreateMultipartUpload of ",
        ),
        ("mount --write", "UploadPartCopy", Reply(500, "InternalError"), "InternalError 500"),
        ("mount --write", "CompleteMultipartUpload", Reply(500, "InternalError"), "InternalError 500"),
    ],
)
def test_what_can_be_read_and_not_written_is_not_mounted_to_be_written(
    bucket: Bucket, s3_proxy: S3Proxy, fail: Fail, way: str, operation: str, fault: Fault, words: str
) -> None:
    s3_proxy.fail(operation, fault, times=None)
    line = fail(way, bucket.url(PREFIX), bucket.through(s3_proxy.url).environment | hasty())
    assert bucket.url(PREFIX) in line
    assert words in line
    assert bucket.keys() == [f"{PREFIX}/zarr.json"]
    assert bucket.uploads() == []
