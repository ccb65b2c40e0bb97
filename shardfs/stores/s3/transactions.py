"""Changes that are known again: what becomes of one whose reply was lost.

Each change puts an id of its own at the end of a list in the object's user metadata.  Who looks later, even after
another host has changed the object again, finds the id there if the change was made.
"""

import re
import secrets
from collections.abc import Awaitable, Callable, Collection, Sequence
from dataclasses import dataclass, replace
from typing import Final, NamedTuple, TypeVar

import trio

from shardfs.errors import ConflictError, NotFoundError, ShardfsError, StoreError, UnknownOutcomeError, UnreachableError
from shardfs.stores.s3.client import S3Client
from shardfs.stores.s3.requests import ObjectStat, Properties

TRANSACTIONS: Final = "shardfs-transactions"
"""The name in an object's user metadata under which the changes that made it are listed, the latest last."""

_CHAIN: Final = 16
_ID: Final = re.compile(r"[0-9a-f]{16}")
_MAX_METADATA: Final = 2048
"""How many bytes of user metadata S3 takes, names and values together."""

_ATTEMPTS: Final = 4
_PAUSE: Final = 0.1

T = TypeVar("T")


class Found(NamedTuple):
    """An object as it was found."""

    stat: ObjectStat
    properties: Properties


@dataclass(frozen=True, slots=True)
class Made:
    """A change that was made; *stat* is what it left, None if another change has followed already."""

    stat: ObjectStat | None


def new_transaction() -> str:
    """Return an id that no other change has."""
    return secrets.token_hex(8)


def transactions(properties: Properties) -> Sequence[str]:
    """Return the ids of the last changes of an object, the latest last."""
    return _ID.findall(properties.metadata.get(TRANSACTIONS, ""))


def with_transaction(properties: Properties, transaction: str) -> Properties:
    """Return *properties* with *transaction* added, and so many of the former ones as there is room for."""
    others = {name: value for name, value in properties.metadata.items() if name != TRANSACTIONS}
    used = sum(len(name.encode()) + len(value.encode()) for name, value in others.items())
    room = (_MAX_METADATA - used - len(TRANSACTIONS) + 1) // (len(transaction) + 1)
    chain = [*transactions(properties), transaction][-min(_CHAIN, room) :] if room > 0 else []
    return replace(properties, metadata=others | ({TRANSACTIONS: ",".join(chain)} if chain else {}))


def is_made(transaction: str, found: Found | None) -> Made | None:
    """Return what is known of a change from what is found now; None if it was not made."""
    chain = transactions(found.properties) if found is not None else ()
    if found is None or transaction not in chain:
        return None
    return Made(found.stat if chain[-1] == transaction else None)


def is_gone(found: Found | None) -> Made | None:
    """Return what is known of a deletion from what is found now; None if it was not made."""
    return Made(None) if found is None else None


async def find_made(client: S3Client, key: str, changes: Collection[str]) -> ObjectStat | None:
    """Return the present state of an object if one of *changes* made it; None if something else is there."""
    if not changes:
        return None
    try:
        stat, properties = await client.head(key)
    except NotFoundError:
        return None
    return stat if any(last in changes for last in transactions(properties)[-1:]) else None


async def once(
    client: S3Client,
    key: str,
    attempt: Callable[[], Awaitable[T]],
    made: Callable[[Found | None], T | None],
) -> T:
    """Make a conditional change of an object, once.

    *attempt* sends it; where no reply came, *made* tells from what is found then whether it was made, and if it was
    not, it is sent again.  Raises `ConflictError` if another change was first, and `StoreError` if it cannot be told
    whether the change was made.
    """
    for count in range(_ATTEMPTS):
        if count:
            await trio.sleep(_PAUSE * 2**count * (0.5 + secrets.randbelow(100) / 100))
        refusal: ConflictError | None = None
        try:
            return await attempt()
        except UnknownOutcomeError as error:
            reason: ShardfsError = error
        except ConflictError as error:
            if not count:
                raise
            reason = refusal = error  # maybe by what an earlier attempt did
        found = await _look(client, key, reason)
        result = made(found)
        if result is not None:
            return result
        if refusal is not None:
            raise refusal
    raise StoreError(f"a change of {key} was not made, in {_ATTEMPTS} attempts without a reply: {reason}")


async def _look(client: S3Client, key: str, reason: ShardfsError) -> Found | None:
    try:
        return Found(*await client.head(key))
    except NotFoundError:
        return None
    except ShardfsError as error:
        kind = UnreachableError if isinstance(error, UnreachableError) else StoreError
        raise kind(f"whether {key} was changed is not known: {reason}; then {error}") from None
