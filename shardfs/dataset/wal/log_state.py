"""What a journal that is written consists of, and how much room it takes."""

import threading

from shardfs.dataset.wal.files import LogFiles
from shardfs.dataset.wal.reading import LogContents, read_log
from shardfs.dataset.wal.segments import Segment
from shardfs.stores.base import Descriptor
from shardfs.stores.local.syscalls import Syscalls


class LogState:
    """The segments of a journal, from the oldest on, of which the last one may be *active*: written to.

    `WriteAheadLog` is the only one that changes them.
    """

    def __init__(
        self,
        directory: Descriptor,
        disk: Syscalls,
        contents: LogContents | None = None,
        *,
        segment_nbytes: int = 64 * 2**20,
        max_nbytes: int = 2**30,
    ) -> None:
        self._files = LogFiles(directory, disk)
        contents = contents or read_log(directory)
        self._segment_nbytes = segment_nbytes
        self.max_nbytes = max_nbytes
        self._state = threading.Lock()  # held for moments only
        self._syncing = threading.Lock()
        self._segments = list(contents.segments)
        self._active: Segment | None = None
        self._number = contents.last_number
        self._created = len(self._segments)  # counts names, *_synced_names* those that are durable
        self._synced_names = 0
        self._sequence = contents.last_sequence
        self._synced_sequence = 0
        # What is done, but not recorded as done: records in the store, and replaced ones with what replaced them.
        self._finished: list[int] = []
        self._replaced: list[tuple[int, int]] = []
        # Live records that were carried forward, with the sequences of those that carry them.
        self._carried = dict(contents.carried)

    @property
    def nbytes(self) -> int:
        """Size of all segments."""
        with self._state:
            return sum(segment.end for segment in self._segments)

    @property
    def live_nbytes(self) -> int:
        """Size of the records that are not done."""
        with self._state:
            return sum(segment.live_nbytes for segment in self._segments)

    @property
    def live(self) -> int:
        """Number of records that are not done."""
        with self._state:
            return sum(segment.live for segment in self._segments)

    @property
    def dead_nbytes(self) -> int:
        """How much of all segments is not needed, and there because an older record is."""
        return self.nbytes - self.live_nbytes

    @property
    def nsegments(self) -> int:
        """Number of segments."""
        return len(self._segments)

    @property
    def is_full(self) -> bool:
        """Whether nothing should be appended before something is done."""
        return self.nbytes >= self.limit() and bool(self.live)

    @property
    def where(self) -> str:
        """The directory of its files."""
        return self._files.where

    @property
    def is_failed(self) -> bool:
        """Whether the journal takes nothing any more."""
        return bool(self._files.failed)

    @property
    def has_vanished(self) -> bool:
        """Whether it takes nothing because somebody removed its files: what is in them only this process can read."""
        return self._files.has_vanished

    @property
    def last_sequence(self) -> int:
        """The latest number that an append took, be it one that failed."""
        return self._sequence

    @property
    def synced_sequence(self) -> int:
        """All records up to this one are durable."""
        return self._synced_sequence

    def has_room(self, nbytes: int) -> bool:
        """Whether a payload of *nbytes* bytes may be appended now; an empty journal takes any, and each takes none."""
        return self.nbytes + nbytes < (self.limit() if nbytes else self.max_nbytes) or not self.live

    def room(self) -> int:
        """Return how many bytes the disk has room for."""
        return self._files.room()

    def limit(self) -> int:
        """Return how large all segments may get; the disk must have as much room besides, for the shards."""
        return min(self.max_nbytes, (self.room() + self.nbytes) // 2)
