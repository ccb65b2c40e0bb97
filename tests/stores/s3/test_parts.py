"""A new version is made of parts that S3 takes, with as little traffic as that needs."""

import itertools
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardfs.errors import StoreError
from shardfs.stores.base import Content, Kept, Splice
from shardfs.stores.s3.parts import GIB, MIB, MultipartLimits, Part, Sent, plan_fetches, plan_parts
from tests.stores.local.splices import Counted, content

OLD = bytes(i * 7 % 251 for i in range(300))
SMALL = MultipartLimits(min_part=10, max_part=40, max_parts=60, max_object=2000)

new_content = st.binary(max_size=60).map(content)
kept = st.tuples(st.integers(0, len(OLD)), st.integers(0, len(OLD))).map(
    lambda pair: Kept(min(pair), abs(pair[1] - pair[0]))
)
splices = st.lists(new_content | kept, max_size=12).map(lambda pieces: Splice(tuple(pieces)))


def bytes_of(*pieces: Kept | Content) -> bytes:
    parts = []
    for piece in pieces:
        if isinstance(piece, Kept):
            parts.append(OLD[piece.offset : piece.offset + piece.nbytes])
        else:
            parts.append(bytes(piece.read(0, piece.nbytes)))
    return b"".join(parts)


def applied(parts: Sequence[Part]) -> bytes:
    return b"".join(
        bytes_of(*part.pieces) if isinstance(part, Sent) else bytes_of(Kept(part.offset, part.nbytes)) for part in parts
    )


@pytest.mark.slow
@given(splices)
def test_the_parts_are_the_new_version(splice: Splice) -> None:
    assert applied(plan_parts(splice, len(OLD), SMALL)) == bytes_of(*splice.pieces)


@pytest.mark.slow
@given(splices)
def test_every_part_is_one_that_s3_takes(splice: Splice) -> None:
    parts = plan_parts(splice, len(OLD), SMALL)
    assert 1 <= len(parts) <= SMALL.max_parts
    assert all(part.nbytes <= SMALL.max_part for part in parts)
    assert all(part.nbytes >= SMALL.min_part for part in parts[:-1])
    assert parts[-1].nbytes > 0 or parts == (Sent(()),)


@pytest.mark.slow
@given(splices)
def test_at_each_seam_less_than_two_smallest_parts_of_old_bytes_are_sent(splice: Splice) -> None:
    parts = plan_parts(splice, len(OLD), SMALL)
    sent = sum(p.nbytes for part in parts if isinstance(part, Sent) for p in part.pieces if isinstance(p, Kept))
    small = sum(piece.nbytes for piece in joined(splice) if isinstance(piece, Kept) and piece.nbytes < SMALL.min_part)
    seams = sum(isinstance(piece, Kept) and piece.nbytes >= SMALL.min_part for piece in joined(splice))
    assert sent - small <= seams * (2 * SMALL.min_part - 1)


def joined(splice: Splice) -> list[Kept | Content]:
    pieces: list[Kept | Content] = []
    for piece in splice.pieces:
        last = pieces[-1] if pieces else None
        if not piece.nbytes:
            continue
        if isinstance(piece, Kept) and isinstance(last, Kept) and last.offset + last.nbytes == piece.offset:
            pieces[-1] = Kept(last.offset, last.nbytes + piece.nbytes)
        else:
            pieces.append(piece)
    return pieces


@pytest.mark.slow
@given(splices)
def test_fetches_give_all_old_bytes_in_order(splice: Splice) -> None:
    fetched = b""
    for group in plan_fetches(splice.pieces):
        for before, piece in itertools.pairwise(group):
            assert before.offset + before.nbytes <= piece.offset
        fetched += bytes_of(*group)
    assert fetched == bytes_of(*(piece for piece in splice.pieces if isinstance(piece, Kept)))


@pytest.mark.slow
def test_more_ranges_than_parts_are_sent_in_larger_parts() -> None:
    ranges = [Kept(i * 7 * MIB, 6 * MIB + (i % 7) * MIB // 8) for i in range(12_000)]
    parts = plan_parts(Splice(tuple(ranges)), 84_000 * MIB)
    assert len(parts) <= 10_000
    assert sum(part.nbytes for part in parts) == sum(piece.nbytes for piece in ranges)


def test_what_s3_has_no_room_for_is_refused() -> None:
    with pytest.raises(StoreError, match="an object of S3 may have"):
        plan_parts(Splice((Kept(0, 5 * 1024 * GIB), Counted(1))), 5 * 1024 * GIB)
