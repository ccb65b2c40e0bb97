"""The story of a change: an object becomes another version, if nobody else was faster.

1. *What is expected.* A `Change` begins with the version that it replaces, or with nothing. What the new version keeps
   is copied from it, or from another object, the *source*.
2. *The request.* `uploads` brings the new version to the server, but for the last request: a PUT, or the completion of
   an upload. That depends on the ETag that is expected. Where the server does not honour such a condition (`probe`),
   and there is a single writer, the ETag is looked up just before. In the properties of the new version is the id of
   the change, after those of the changes before it.
3. *What a reply means* (`Change._make`; `errors.Failure` distinguishes these kinds of replies):

   ========================= ======================== ==================================================
   reply                     to the first request     to a later one
   ========================= ======================== ==================================================
   success                   made                     made
   409, 412, 404 (conflict)  somebody else was first  look: it may have been ours, or ours may still be under way
   none (unknown outcome)    look                     look
   any other error           not made                 still unknown
   ========================= ======================== ==================================================

4. *To look* is to HEAD the object. If it has the id of the change, that was made, even if other hosts have changed the
   object since. It still is what the change made of it if that id is the last one, and the size is right: a program
   that knows of no ids may store other bytes with the metadata of the object. If it is another version than was
   expected, somebody else was first, and our requests will be refused whenever they arrive. If it still is what was
   expected, the request is sent again, with the same id, a few times: should the first one arrive late, one of the two
   is refused. If nothing answers, nobody can tell, and the error says so.
5. *What the caller gets.* The state of the new version, of which readers know already (`Objects.changed`);
   `ConflictError` if somebody else was first, or each repeated request was refused though the object stayed what was
   expected; any other error if it was not made, or if that is unknown. `Change.is_undecided` tells whether it is
   unknown. After every error, all that is known of the object is forgotten, so that the next request asks the server.
6. *What is done about a conflict.* A commit is planned anew, from the new index (`dataset/commit.py`); so it is too if
   the outcome is unknown, since its changes stay in the journal. Documents and other files are stored by
   `Changes.replace`, which decides whether the version that was first may be replaced: if anything may be, or if it
   comes from an earlier change of ours whose outcome was `Undecided`. Else it raises `ExistsError` or `StaleError`, and
   what was written is kept on this machine (`files`).
"""

import re
import secrets
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Final

import trio

from shardfs.errors import (
    ConflictError,
    ExistsError,
    NotFoundError,
    ShardfsError,
    StaleError,
    StoreError,
    UnknownOutcomeError,
    UnreachableError,
)
from shardfs.stores.base import ABSENT, ANY, Presence, Splice, Stat
from shardfs.stores.objects.client import Backoff
from shardfs.stores.objects.heads import FoundObject
from shardfs.stores.objects.requests import Fetched, ObjectStat, Properties
from shardfs.stores.objects.versions import (
    Objects,
    ObjectSnapshot,
    file_stat,
    object_of,
)
from shardfs.stores.s3.client import S3Client
from shardfs.stores.s3.parts import kept_prefix
from shardfs.stores.s3.requests import Condition
from shardfs.stores.s3.uploads import LastRequest, Uploads

COMMIT_IDS: Final = "shardfs-transactions"
"""The name, in an object's user metadata or Cache-Control, of the ids of the changes that made it, the latest last."""

_MAX_IDS: Final = 16
_MAX_METADATA: Final = 2048
"""How many bytes of user metadata S3 accepts, names and values together."""

_ID: Final = re.compile(r"[0-9a-f]{16}")
_DIRECTIVE: Final = re.compile(rf'(?:^|, *){COMMIT_IDS}="([0-9a-f,]*)"')

_BACKOFF: Final = Backoff(attempts=4, first=0.2)
_ATTEMPTS: Final = 10
"""How often an object is replaced by another version while `ANY` is being replaced, until that is an error."""

_MAX_UNDECIDED: Final = 1000


def commit_ids(properties: Properties | None) -> Sequence[str]:
    """Return the ids of the last changes of an object, the latest last."""
    if properties is None:
        return []
    listed = properties.metadata.get(COMMIT_IDS)
    if listed is None:
        directive = _DIRECTIVE.search(properties.headers.get("CacheControl", ""))
        listed = directive[1] if directive is not None else ""
    return _ID.findall(listed)


def with_commit_id(properties: Properties, commit_id: str) -> Properties:
    """Return *properties* with *commit_id* added to the ids of earlier changes, of which the last ones stay.

    The ids are in the user metadata. Where these have no space for them, because programs have filled it, they are a
    directive of Cache-Control, which counts for no limit: whoever does not know a directive has to ignore it.
    """
    ids = ",".join([*commit_ids(properties), commit_id][-_MAX_IDS:])
    metadata = {name: value for name, value in properties.metadata.items() if name != COMMIT_IDS}
    headers = dict(properties.headers)
    others = _DIRECTIVE.sub("", headers.pop("CacheControl", ""))
    used = sum(len(name.encode()) + len(value.encode()) for name, value in metadata.items())
    if used + len(COMMIT_IDS) + len(ids) <= _MAX_METADATA:
        metadata[COMMIT_IDS] = ids
    else:
        others = f'{others}{", " if others else ""}{COMMIT_IDS}="{ids}"'
    if others:
        headers["CacheControl"] = others
    return replace(properties, headers=headers, metadata=metadata)


@dataclass(slots=True)
class Undecided:
    """Changes of ours that may have been made, or may still be: nobody knows what became of their requests.

    A row is the id of one, its key, and the size of what it stores. `Changes.replace` adds it, and drops all rows of a
    key with the next change of it that is made, because no earlier one can take effect any more. Without the row, a
    file that was stored without a reply would be in conflict with itself when it is stored again.

    There are at most `_MAX_UNDECIDED`. The oldest goes first: what it stored counts as another host's then, so what is
    written later is refused and kept on this machine, and nothing is lost.
    """

    _changes: OrderedDict[str, tuple[str, int]] = field(default_factory=OrderedDict)

    def add(self, key: str, commit_id: str, nbytes: int) -> None:
        """Note a change whose outcome is unknown."""
        self._changes[commit_id] = key, nbytes
        if len(self._changes) > _MAX_UNDECIDED:
            self._changes.popitem(last=False)

    def drop(self, key: str) -> None:
        """Note that a change of *key* was made: all earlier ones are decided."""
        for commit_id in [commit_id for commit_id, (other, _) in self._changes.items() if other == key]:
            del self._changes[commit_id]

    def has_made(self, key: str, present: Fetched) -> bool:
        """Whether the object *key*, as it is at *present*, was stored by one of them, and not changed since."""
        commit_id = _last_id(present)
        return self._changes.get(commit_id) == (key, present.stat.size)


@dataclass(frozen=True, slots=True)
class Changes:
    """How the objects of a source are changed; all who change them share this."""

    objects: Objects[S3Client]
    uploads: Uploads
    single_writer: bool
    undecided: Undecided = field(default_factory=Undecided)

    def of(self, key: str, old: ObjectSnapshot | None, source: ObjectSnapshot | None = None) -> "Change":
        """Begin a change of an object that must be the version *old*, or nothing; see `Change` for *source*."""
        return Change(self, key, old, source)

    async def replace(
        self, key: str, splice: Splice, expected: ObjectStat | Presence, *, source: ObjectSnapshot | None = None
    ) -> ObjectStat:
        """Store an object, replacing what is *expected*; what is to be kept is of *source*.

        An earlier change of ours whose outcome is unknown is replaced too. Raises `ExistsError` if it is expected to be
        absent and is not, and `StaleError` if another program has changed it, or *source*.
        """
        old = await self._known(key) if expected is ANY else version_or_none(expected)
        for _ in range(_ATTEMPTS):
            change = self.of(key, ObjectSnapshot(self.objects, key, old) if old is not None else None, source)
            try:
                new = await self._make(change, key, splice)
            except ConflictError:
                old = await self._after_conflict(key, old, expected, source)
            else:
                self.undecided.drop(key)
                return new
        raise StaleError(f"{key} was changed by other programs {_ATTEMPTS} times while it was being stored")

    async def _make(self, change: "Change", key: str, splice: Splice) -> ObjectStat:
        """Make a change of the object *key*, and note it if its outcome is unknown; raises the errors of `Change`."""
        try:
            return object_of(await change.splice(splice))
        finally:
            if change.is_undecided:
                self.undecided.add(key, change.commit_id, splice.nbytes)

    async def _known(self, key: str) -> ObjectStat | None:
        """Return what an object is now, as far as is known; None if there is none."""
        known = await self.objects.heads.stored(key)
        return known.version if isinstance(known, FoundObject) else None

    async def _after_conflict(
        self, key: str, old: ObjectStat | None, expected: ObjectStat | Presence, source: ObjectSnapshot | None
    ) -> ObjectStat | None:
        """Return what an object is, which is not *old* any more, if it may be replaced all the same."""
        present: Fetched | None = None
        with suppress(NotFoundError):
            present = await self.objects.heads.fetched(key)
        is_other = _etag_of(present) != (old.etag if old is not None else None)
        is_ours = present is not None and self.undecided.has_made(key, present)
        if is_other and (is_ours or expected is ANY):
            return present.stat if present is not None else None
        if is_other and expected is ABSENT:
            raise ExistsError(f"{key} exists: another program has made it")
        what = key if is_other or source is None else source.key
        raise StaleError(f"{what} was changed by another program since it was opened; read it again")


@dataclass(frozen=True, slots=True)
class _Success:
    """A change was made, and the object is *stat*; None if it was deleted, or another change has followed already."""

    stat: ObjectStat | None


_Judge = Callable[[Fetched | None], _Success | None]
"""Decides by what an object is now, None being nothing, whether a change was made; None if it was not."""


class Change:
    """A change of the object *key*, which is *snapshot*, or None; nobody is kept from changing it meanwhile.

    *source* is the object that the bytes to be kept, and the properties, are taken from: by default *snapshot*. After
    an error, *is_undecided* if the change may have been made, or may still be.
    """

    temporary = ""
    append_alignment = 1

    def __init__(
        self, changes: Changes, key: str, snapshot: ObjectSnapshot | None, source: ObjectSnapshot | None = None
    ) -> None:
        self.snapshot = snapshot
        self.commit_id = secrets.token_hex(8)
        self.is_undecided = False
        self._key = key
        self._source = source or snapshot
        self._changes = changes
        self._objects = changes.objects
        self._client = changes.objects.client
        self._conditions = changes.uploads.conditions
        self._etag = snapshot.object.etag if snapshot is not None else None
        self._url = self._client.location.url_of(key)

    async def splice(self, splice: Splice, check: Callable[[], None] | None = None) -> Stat:
        """Store the new version.

        If another host has changed the object again meanwhile, the returned state is that of no version: its ETag, the
        id of the change, matches none, so whoever expects it is in conflict.
        """
        source, heads = self._source, self._objects.heads
        with self._forgetting():
            if source is None:
                old_properties = Properties.of_new(self._key)
            else:
                old_properties = await heads.properties(source.key, source.object.etag)
            properties = with_commit_id(old_properties, self.commit_id)
            async with self._changes.uploads.prepared(self._key, splice, properties, source) as last:
                with self._objects.changing(self._key):
                    success = await self._make(last, partial(self._was_stored, splice.nbytes))
                    if success.stat is None:
                        heads.forget(self._key)
                        return file_stat(
                            self._key, ObjectStat(splice.nbytes, self.commit_id, self._client.clock.now_ns())
                        )
                    old = self.snapshot.object if self.snapshot is not None else None
                    kept_nbytes = kept_prefix(splice) if source is self.snapshot else 0
                    self._objects.changed(self._key, old, success.stat, properties, kept_nbytes)
                    return file_stat(self._key, success.stat)

    @property
    def was_interrupted(self) -> bool:
        """No: objects are replaced as a whole."""
        return False

    @property
    def can_delete(self) -> bool:
        """Whether deleting it cannot lose a change by another host."""
        return self._conditions.delete or self._changes.single_writer

    async def settle(self, inode: int, splice: Splice | None = None) -> None:
        """Do nothing: what is visible is durable, and whole."""

    def leave(self) -> None:
        """Do nothing: nothing is ever appended to an object that is there."""

    async def release(self) -> None:
        """Do nothing: the version that is expected keeps others away."""

    async def delete(self) -> None:
        """Remove the object, checked as well as possible to be this version (`can_delete`)."""
        if self.snapshot is None:
            raise NotFoundError(f"{self._url} does not exist")

        async def delete(condition: Condition | None) -> None:
            await self._client.delete(self._key, condition=condition)

        with self._forgetting(), self._objects.changing(self._key):
            await self._make(LastRequest(delete, self._conditions.delete), _was_deleted)
            self._objects.heads.changed(self._key, None)

    @contextmanager
    def _forgetting(self) -> Iterator[None]:
        """Make the change in the block; if it fails, forget what is known about the objects."""
        try:
            yield
        except ShardfsError as error:
            self._objects.heads.forget(self._key)
            if self._source is not None:
                self._objects.heads.forget(self._source.key)
            if isinstance(error, NotFoundError):  # what was to be kept is not there
                raise self._refusal() from None
            raise

    async def _make(self, last: LastRequest, judge: _Judge) -> _Success:
        """Make the change, once, by its *last* request; see the table above.

        Raises `ConflictError` if another change was first, and `StoreError` if it is unknown whether it was made.
        """
        for attempt in range(_BACKOFF.attempts):
            if attempt:
                await trio.sleep(_BACKOFF.delay(attempt))
            reason: UnknownOutcomeError | ConflictError
            try:
                stat = await self._send(last)
            except UnknownOutcomeError as error:
                self.is_undecided, reason = True, error
            except ConflictError as error:
                if not self.is_undecided:
                    raise
                reason = error
            else:
                self.is_undecided = False
                return _Success(stat)
            present = await self._look(reason)
            success = judge(present)
            self.is_undecided = success is None and _etag_of(present) == self._etag
            if success is not None:
                return success
            if not self.is_undecided:
                raise reason if isinstance(reason, ConflictError) else self._refusal()
        if isinstance(reason, ConflictError):
            raise reason
        attempts = _BACKOFF.attempts
        raise StoreError(f"a change of {self._url} was not made, in {attempts} attempts without a reply: {reason}")

    async def _send(self, last: LastRequest) -> ObjectStat | None:
        """Send the last request, on the condition that the object is what is expected; return what it is then."""
        if last.is_honoured:
            return await last.send(Condition(self._etag))
        if _etag_of(await self._head()) != self._etag:
            raise self._refusal()
        return await last.send(None)

    async def _look(self, reason: ShardfsError) -> Fetched | None:
        """Return what the object is after a request without success; raises the error that nobody can know."""
        try:
            return await self._head()
        except ShardfsError as error:
            kind = UnreachableError if isinstance(error, UnreachableError) else StoreError
            raise kind(f"cannot tell whether {self._url} was changed: {reason}; then {error}") from None

    async def _head(self) -> Fetched | None:
        """Return what the object is now; None if there is none."""
        try:
            return await self._client.head(self._key)
        except NotFoundError:
            return None

    def _was_stored(self, nbytes: int, present: Fetched | None) -> _Success | None:
        """Decide whether a version of *nbytes* bytes was stored."""
        if present is None or self.commit_id not in commit_ids(present.properties):
            return None
        is_it = _last_id(present) == self.commit_id and present.stat.size == nbytes
        return _Success(present.stat if is_it else None)

    def _refusal(self) -> ConflictError:
        return ConflictError(f"{self._url} was changed by another program")


def _was_deleted(present: Fetched | None) -> _Success | None:
    return _Success(None) if present is None else None


def _last_id(present: Fetched) -> str:
    """Return the id of the last change of an object; "" if there is none."""
    return next(reversed(commit_ids(present.properties)), "")


def _etag_of(present: Fetched | None) -> str | None:
    return present.stat.etag if present is not None else None


def version_or_none(expected: ObjectStat | Presence) -> ObjectStat | None:
    """Return the version that is *expected*; None if it is no certain one."""
    return expected if isinstance(expected, ObjectStat) else None
