"""PUT, DELETE and flush: each changes one file as a whole, as `close` and `unlink` do on a writing mount."""

from contextlib import suppress
from hashlib import sha256

from shardfs.errors import ExistsError, IsADirectoryHereError, MetadataError, RefusedError, ShardfsError
from shardfs.serve.conditions import PreconditionFailedError, RequestConditions
from shardfs.serve.exchange import ClientError, Exchange
from shardfs.vfs.all_views import Check, Views
from shardfs.vfs.versions import text_of_sum
from shardfs.vfs.write_buffer import BufferBytes


async def put(exchange: Exchange, views: Views, path: str) -> None:
    """Make the body of a request the content of a file; when the reply comes, it survives the end of the server.

    Nothing is published of a body that does not arrive as a whole.
    """
    if exchange.header("content-range") is not None:
        raise ClientError(400, "a file is written as a whole, and Content-Range is for a part")
    if exchange.header("content-encoding") not in (None, "identity"):
        raise ClientError(415, "a file is stored as it is sent, without a content coding")
    if exchange.header("content-length") is None and exchange.header("transfer-encoding") is None:
        raise ClientError(411, "a body needs Content-Length or the transfer coding chunked: else nobody knows its end")
    content, text = await _receive(exchange, views)
    conditions = RequestConditions.of(exchange)
    try:
        is_new = await views.publish(path, content, _check_of(conditions), exclusive=conditions.is_for_a_new_file)
    except ExistsError:
        raise PreconditionFailedError("If-None-Match: somebody has created it meanwhile") from None
    except MetadataError as error:
        raise RefusedError(str(error)) from None
    version = None
    with suppress(ShardfsError):  # it is published, even if nobody can look at it now
        async with views.main.open_version(path) as shown:
            version = shown.text
    tag = [("ETag", f'"{version}"')] if version == text else []  # else it is shown in other words than it was sent
    await exchange.reply(201 if is_new else 204, tag, nbytes=0)


async def _receive(exchange: Exchange, views: Views) -> tuple[BufferBytes, str]:
    """Return the body, and the text of a version that has these bytes."""
    content, found = views.main.new_content(), sha256()
    async for piece in exchange.body():
        content.write(content.nbytes, piece)
        found.update(piece)
    return content, text_of_sum(found.digest())


async def delete(exchange: Exchange, views: Views, path: str) -> None:
    """Remove a file."""
    if not path:
        raise IsADirectoryHereError("the source is a directory")
    await views.remove(path, _check_of(RequestConditions.of(exchange)))
    await exchange.reply(204)


def _check_of(conditions: RequestConditions) -> Check | None:
    """Return what decides whether a file may be changed; None spares looking at its version."""
    return conditions.is_known if conditions.name_versions else None


async def flush(exchange: Exchange, views: Views) -> None:
    """Commit everything that was published."""
    await views.main.flush()
    await exchange.reply(204)
