"""Where credentials, region and endpoint come from, and what is said where they are missing or wrong."""

from functools import partial
from pathlib import Path

import pytest

from shardfs.errors import AccessDeniedError, NotFoundError, SourceError, StoreError
from shardfs.stores.objects.location import S3Location
from shardfs.stores.objects.options import S3Options
from shardfs.stores.objects.requests import Counts, Properties
from shardfs.stores.s3.client import S3Client
from tests.stores.s3.clients import PLAIN, WHOLE, Memory, client_of, run
from tests.support.s3_faults import Reply
from tests.support.s3_proxy import S3Proxy
from tests.support.s3_server import Bucket

pytestmark = pytest.mark.usefixtures("aws_environment")


@pytest.fixture
def no_credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")


@pytest.fixture
def configuration(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, no_credentials: None) -> Path:
    """The user's configuration file, which is empty."""
    path = tmp_path / "config"
    path.touch()
    monkeypatch.setenv("AWS_CONFIG_FILE", str(path))
    for name in ("AWS_REGION", "AWS_DEFAULT_REGION"):
        monkeypatch.delenv(name)
    return path


def profile(name: str, key: str, **settings: str) -> str:
    lines = {"aws_access_key_id": key, "aws_secret_access_key": "secret", **settings}
    return f"[{name}]\n" + "".join(f"{option} = {value}\n" for option, value in lines.items())


def refusal(**options: object) -> str:
    with pytest.raises(SourceError) as refused:
        S3Client(S3Location("bucket", ""), S3Options(**options), Counts())
    return str(refused.value)


def test_without_credentials_the_ways_out_are_named(no_credentials: None) -> None:
    said = refusal()
    assert all(way in said for way in ("aws configure", "--profile", "--anonymous"))


@pytest.mark.slow
def test_an_endpoint_that_is_none_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    for endpoint in ("minio:9000", "ftp://minio", "http://", "http://a b", "http://host/?x=1", "-"):
        assert "is not the URL of a server" in refusal(endpoint_url=endpoint)
        with monkeypatch.context() as patched:
            patched.setenv("AWS_ENDPOINT_URL", endpoint)
            assert "is not the URL of a server" in refusal()


def test_a_password_in_an_endpoint_is_refused_and_not_repeated(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", "http://user:hush@minio:9000")
    said = refusal()
    assert "holds a password" in said
    assert "hush" not in said


def both(client: S3Client) -> None:
    """Use both libraries."""
    run(partial(client.put, "key", Memory(b"data"), PLAIN))
    assert bytes(run(partial(client.get, "key", WHOLE)).data) == b"data"


def signatures(proxy: S3Proxy) -> list[list[str]]:
    """Key, day and region that requests were signed with, in order."""
    headers = [request.headers["authorization"] for request in proxy.log]
    return [header.partition("Credential=")[2].partition("/s3/")[0].split("/") for header in headers]


def test_a_profile_gives_credentials_region_and_endpoint_to_both_libraries(
    s3_bucket: Bucket, s3_proxy: S3Proxy, configuration: Path
) -> None:
    settings = {"region": "eu-west-7", "endpoint_url": s3_proxy.url}
    configuration.write_text(profile("default", "DEFAULT") + profile("profile other", "OTHER", **settings))
    client = client_of(s3_bucket, profile="other", endpoint_url=None).client
    for call in (partial(client.get, "key", WHOLE), partial(client.list_page, "")):
        with pytest.raises(StoreError, match=r"is in another region.*--region"):
            run(call)
    assert len(s3_proxy.log) == 2
    assert {(key, region) for key, _, region in signatures(s3_proxy)} == {("OTHER", "eu-west-7")}


def test_an_option_goes_before_the_environment(
    s3_bucket: Bucket, s3_proxy: S3Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:1")
    monkeypatch.setenv("AWS_REGION", "eu-west-9")
    monkeypatch.setenv("AWS_DEFAULT_REGION", "eu-west-9")
    both(client_of(s3_bucket.through(s3_proxy.url), region="us-east-1").client)
    assert {region for _, _, region in signatures(s3_proxy)} == {"us-east-1"}


def test_what_other_libraries_read_from_the_environment_changes_nothing(
    s3_bucket: Bucket, s3_proxy: S3Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_SKIP_SIGNATURE", "true")
    monkeypatch.setenv("AWS_REQUEST_PAYER", "true")
    monkeypatch.setenv("AWS_VIRTUAL_HOSTED_STYLE_REQUEST", "true")
    both(client_of(s3_bucket.through(s3_proxy.url)).client)
    assert all("authorization" in request.headers for request in s3_proxy.log)
    assert not any("x-amz-request-payer" in request.headers for request in s3_proxy.log)


def test_credentials_that_expired_are_taken_from_the_file_again(
    s3_bucket: Bucket, s3_proxy: S3Proxy, configuration: Path
) -> None:
    configuration.write_text(profile("default", "OLD"))
    tried = client_of(s3_bucket.through(s3_proxy.url))
    both(tried.client)
    configuration.write_text(profile("default", "NEW"))
    both(tried.client)
    s3_proxy.fail("GetObject", Reply(400, "ExpiredToken"), times=1)
    s3_proxy.log.clear()
    assert bytes(run(partial(tried.client.get, "key", WHOLE)).data) == b"data"
    both(tried.client)
    assert [key for key, _, _ in signatures(s3_proxy)] == ["OLD", "NEW", "NEW", "NEW"]
    assert tried.counts.retries == 1


@pytest.mark.parametrize("status", [400, 403])
def test_credentials_that_expired_are_taken_from_the_file_again_where_a_reply_to_head_cannot_say_so(
    s3_bucket: Bucket, s3_proxy: S3Proxy, configuration: Path, status: int
) -> None:
    configuration.write_text(profile("default", "OLD"))
    tried = client_of(s3_bucket.through(s3_proxy.url))
    both(tried.client)
    configuration.write_text(profile("default", "NEW"))
    for operation in ("HeadObject", "GetObject"):
        s3_proxy.fail(operation, Reply(status, "ExpiredToken"))
    tried.begin()
    s3_proxy.log.clear()
    assert run(partial(tried.client.head, "key")).stat.size == 4
    assert [key for key, _, _ in signatures(s3_proxy)] == ["OLD", "OLD", "NEW"]
    assert tried.counts.requests == {"HeadObject": 2, "GetObject": 1}
    for operation in ("HeadObject", "GetObject"):
        s3_proxy.fail(operation, Reply(status, "ExpiredToken"))
    with pytest.raises(AccessDeniedError, match="credentials have expired"):  # it has just been renewed
        run(partial(tried.client.head, "key"))


def test_a_refusal_of_head_without_a_reason_is_what_get_says(s3_bucket: Bucket, s3_proxy: S3Proxy) -> None:
    tried = client_of(s3_bucket.through(s3_proxy.url))
    run(partial(tried.client.put, "key", Memory(b"data"), Properties({"ContentType": "image/x"}, {"mine": "1"})))
    run(partial(tried.client.put, "empty", Memory(b""), PLAIN))
    expected = run(partial(tried.client.head, "key"))
    s3_proxy.fail("HeadObject", Reply(403, ""), times=None)
    assert run(partial(tried.client.head, "key")) == expected, "of a server that has renewed nothing but the right"
    with pytest.raises(NotFoundError):
        run(partial(tried.client.head, "nothing"))
    with pytest.raises(AccessDeniedError):
        run(partial(tried.client.head, "empty"))
    s3_proxy.fail("GetObject", Reply(403, "AccessDenied"), times=None)
    with pytest.raises(AccessDeniedError, match=r"AccessDenied 403.*: no permission$"):
        run(partial(tried.client.head, "key"))
    s3_proxy.heal()
    s3_proxy.fail("HeadObject", Reply(403, ""))
    s3_proxy.log.clear()
    anonymous = client_of(s3_bucket.through(s3_proxy.url), anonymous=True)
    with pytest.raises(AccessDeniedError):
        run(partial(anonymous.client.head, "key"))
    assert len(s3_proxy.log) == 1, "without credentials none can have expired"


@pytest.mark.parametrize("is_gone", [False, True])
def test_credentials_that_expired_and_are_not_renewed_are_an_error_soon(
    s3_bucket: Bucket, s3_proxy: S3Proxy, configuration: Path, is_gone: bool
) -> None:
    configuration.write_text(profile("default", "OLD"))
    tried = client_of(s3_bucket.through(s3_proxy.url))
    if is_gone:
        configuration.unlink()
    s3_proxy.fail(None, Reply(400, "ExpiredToken"), times=2 if is_gone else 3)
    for call in (partial(tried.client.get, "key", WHOLE), partial(tried.client.list_page, "")):
        with pytest.raises(AccessDeniedError, match="credentials have expired"):
            run(call)
    assert tried.counts.retries == (0 if is_gone else 1)
    both(tried.client)
