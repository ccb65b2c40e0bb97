"""Looking into shards: what each holds, what is dead weight in it, and what is damaged."""

from collections.abc import AsyncIterator
from dataclasses import dataclass
from math import prod
from typing import Final

import numpy as np
import trio

from shardfs.dataset.array import Array
from shardfs.dataset.shard import OpenShard, open_inner_shard
from shardfs.errors import CorruptionError, MetadataError, OversizedDataError, ShardfsError
from shardfs.format.codecs import MAX_CHUNK_NBYTES, decode, is_decodable, split_chain
from shardfs.format.document import Extension
from shardfs.format.dtype import item_nbytes
from shardfs.format.index import are_empty, damaged
from shardfs.format.sharding import Coords, Place

_PIECE_NBYTES: Final = 64 * 2**20


@dataclass(frozen=True, slots=True)
class Problem:
    """Something damaged: a whole shard, or an inner chunk, named by its key in the unsharded array.

    What is *too_large* to be decoded may be sound.
    """

    shard: str
    chunk: str | None
    message: str
    too_large: bool = False


@dataclass(frozen=True, slots=True)
class ShardUse:
    """What a shard's bytes are used for; *live* are payloads and indexes, each byte counted once.

    *live* is None where a shard, or one within it, is encoded as a whole: no byte of it can be told from another.
    """

    key: str
    size: int
    chunks: int
    live: int | None
    error: str | None

    @property
    def dead(self) -> int | None:
        """Bytes that nothing refers to."""
        return None if self.live is None else self.size - self.live


@dataclass(frozen=True, slots=True)
class ChunkDecoder:
    """Decodes inner chunks as far as their size shows whether they are sound; *nbytes* is None where that varies."""

    codecs: tuple[Extension, ...]
    nbytes: int | None

    @classmethod
    def of(cls, array: Array) -> "ChunkDecoder | None":
        """Return the decoder for the chunks of *array*; None if a codec is not known."""
        try:
            chain = split_chain(array.codecs, "codecs")
        except MetadataError:
            return None
        if any(codec.name != "transpose" for codec in chain.before) or not all(map(is_decodable, chain.after)):
            return None
        nbytes = item_nbytes(array.document["data_type"]) if chain.serializer.name == "bytes" else None
        return cls(chain.after, None if nbytes is None else nbytes * prod(array.grid.chunk_shape))

    async def check(self, shard: OpenShard, offset: int, nbytes: int) -> None:
        """Read and decode one chunk; raises `CorruptionError` if it is damaged.

        Raises `OversizedDataError` if it, or what it decodes to, is larger than `MAX_CHUNK_NBYTES`.
        """
        if not self.codecs:
            self._check_size(nbytes)
            for start in range(0, nbytes, _PIECE_NBYTES):
                await shard.read(offset + start, min(_PIECE_NBYTES, nbytes - start), (offset, nbytes))
            return
        limit = MAX_CHUNK_NBYTES if self.nbytes is None else self.nbytes
        if nbytes > 2 * limit + 4096 and self.nbytes is not None:
            raise CorruptionError(f"the chunk has {nbytes} encoded bytes, too many for {limit} decoded ones")
        if max(nbytes - 4096, limit) > MAX_CHUNK_NBYTES:
            raise OversizedDataError(
                f"{max(nbytes, limit):,} bytes are more than the {MAX_CHUNK_NBYTES:,} that are decoded"
            )
        try:
            encoded = await shard.read(offset, nbytes, (offset, nbytes))
            self._check_size(len(await trio.to_thread.run_sync(decode, self.codecs, encoded, limit)))
        except OversizedDataError as error:
            raise error if self.nbytes is None else CorruptionError(str(error)) from None
        except MemoryError:
            raise OversizedDataError("decoding it takes more memory than there is") from None

    def _check_size(self, nbytes: int) -> None:
        if self.nbytes not in (None, nbytes):
            raise CorruptionError(f"the chunk decodes to {nbytes} bytes, its shape needs {self.nbytes}")


async def measure(array: Array, coords: Coords) -> ShardUse:
    """Tell what the stored shard at *coords* holds."""
    problems: list[Problem] = []
    state = await array.shard(coords)
    chunks = 0
    ranges: list[np.ndarray] = []
    encoded = False
    async for shard, place in _levels(array, coords, problems):
        encoded = encoded or shard.decoded is not None
        ranges.append(np.array([[shard.index_offset, len(shard.index.encoded)]], dtype=np.uint64))
        if len(place.shapes) == len(array.grid.levels):
            entries = shard.index.entries
            chunks += int(np.count_nonzero(~are_empty(entries)))
            ranges.append(entries[shard.index.sound] + np.array([shard.offset, 0], np.uint64))
    return ShardUse(
        key=array.layout.shard_key(coords),
        size=state.stat.size if state.stat else 0,
        chunks=chunks,
        live=None if encoded or not ranges else _covered_nbytes(np.concatenate(ranges)),
        error=problems[0].message if problems else None,
    )


async def find_damage(array: Array, coords: Coords, *, data: bool) -> list[Problem] | None:
    """Return what `check` finds, None if that is nothing; *data* looks into chunks whose codecs are known."""
    decoder = ChunkDecoder.of(array) if data else None
    return [problem async for problem in check(array, coords, decoder)] or None


async def check(array: Array, coords: Coords, decoder: ChunkDecoder | None) -> AsyncIterator[Problem]:
    """Yield what is damaged in the stored shard at *coords*; a *decoder* looks into the chunks too."""
    problems: list[Problem] = []
    async for shard, place in _levels(array, coords, problems):
        while problems:
            yield problems.pop(0)
        if len(place.shapes) < len(array.grid.levels):
            continue
        entries = shard.index.entries
        suspects = damaged(entries, shard.index.shard_nbytes)
        if decoder is not None:
            suspects = np.flatnonzero(~are_empty(entries)).tolist()
        for entry in suspects:
            try:
                found = shard.index.range(entry)
                if found is not None and decoder is not None:
                    await decoder.check(shard, *found)
            except ShardfsError as error:
                yield _problem(array, _entered(place, entry), error)
    for problem in problems:
        yield problem


async def _levels(array: Array, coords: Coords, problems: list[Problem]) -> AsyncIterator[tuple[OpenShard, Place]]:
    """Yield the shard at *coords* and every shard within it, with its place, of which the last entry is left open.

    Those that cannot be read are added to *problems*.  No more than one shard of each level is open at a time.
    """
    state = await array.shard(coords)
    if state.error is not None:
        problems.append(Problem(array.layout.shard_key(coords), None, str(state.error)))
    if state.shard is not None:
        async for found in _within(array, state.shard, Place(coords, (), (array.grid.index_shape(coords),)), problems):
            yield found


async def _within(
    array: Array, shard: OpenShard, place: Place, problems: list[Problem]
) -> AsyncIterator[tuple[OpenShard, Place]]:
    yield shard, place
    levels, depth = array.grid.levels, len(place.shapes)
    if depth == len(levels):
        return
    shape = levels[depth].chunks_per_shard(levels[depth - 1].span)
    for entry in range(shard.index.nentries):
        entered = _entered(place, entry)
        try:
            inner = await open_inner_shard(levels[depth], shape, shard, entry)
        except ShardfsError as error:
            error = type(error)(f"the shard within, which begins with this chunk: {error}")
            problems.append(_problem(array, entered, error))
            continue
        if inner is not None:
            deeper = entered._replace(shapes=(*place.shapes, shape))
            async for found in _within(array, inner, deeper, problems):
                yield found


def _entered(place: Place, entry: int) -> Place:
    return Place(place.shard, (*place.entries, entry), place.shapes)


def _problem(array: Array, place: Place, error: ShardfsError) -> Problem:
    layout = array.layout
    chunk = layout.key_encoding.encode(array.grid.coords(place))
    return Problem(layout.shard_key(place.shard), chunk, str(error), isinstance(error, OversizedDataError))


def _covered_nbytes(ranges: np.ndarray) -> int:
    """Return how many bytes lie in at least one of *ranges*, rows of offset and length."""
    starts = ranges[:, 0].astype(np.int64)
    order = np.argsort(starts)
    starts = starts[order]
    stops = starts + ranges[:, 1].astype(np.int64)[order]
    reached = np.maximum.accumulate(np.concatenate([[0], stops[:-1]]))
    return int(np.maximum(stops - np.maximum(starts, reached), 0).sum())
