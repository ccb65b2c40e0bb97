"""What one request shows: which level of an image, which channels and labels, along which axes; and reading all of it.

Documents are read first. Then chunks of the plane, of labels, and of coordinates are read at the same time, so that
coordinates make no picture later.
"""

from collections.abc import Awaitable, Callable, Hashable, Mapping, Sequence
from contextlib import suppress
from typing import Final, NamedTuple

import numpy as np

from shardfs.dataset.hierarchy import Hierarchy, Source
from shardfs.dataset.node import Node, groups_above
from shardfs.errors import NotFoundError, ShardfsError
from shardfs.format.lens.v2 import is_relative_path
from shardfs.format.metadata import ArrayMetadata
from shardfs.serve.pages.axes import Axes, find_axes
from shardfs.serve.pages.colors import LABELS, TABLES
from shardfs.serve.pages.picture import Mask, PlaneLayer, Tint
from shardfs.serve.pages.plane import Cut, Decoded, Plane, look_at, open_decoded, read_plane, sampled
from shardfs.serve.pages.pyramid import Channels, Image, channels_of, image_in
from shardfs.serve.pages.query import Choice, Query, Style
from shardfs.serve.pages.variable import Elements
from shardfs.stores.base import join_key
from shardfs.stores.parallel import for_each, open_nursery
from shardfs.vfs.paths import Paths

_FAR_ABOVE: Final = 4
"""How many groups above an array may say that it is a level of an image."""
_DEEP: Final = 8
"""Of how many groups above a node all are looked at together."""
_VIRIDIS: Final = TABLES[1]


async def foresee(source: Source, path: str) -> None:
    """Look at the node at *path*, at groups above it, and at the names beside it, all at the same time.

    Who then asks for one after the other waits for none, and gets the errors; coordinates are among the names.
    """
    hierarchy = source.hierarchy
    above = [above for above, _ in groups_above(path)]
    if not hierarchy.ttl or len(above) > _DEEP:  # all would be asked for again, or in vain
        return

    async def look(ask: Callable[[str], Awaitable[object]], path: str) -> None:
        with suppress(ShardfsError):
            await ask(path)

    async with open_nursery() as nursery:
        for each in [path, *above]:
            nursery.start_soon(look, hierarchy.node, each)
        for each in above[:1]:
            nursery.start_soon(look, source.store.expect_names, each)


class Found(NamedTuple):
    """The *image* that a node is, or is a level of, the paths of its levels from the node on, and of its *group*."""

    image: Image | None
    levels: Sequence[str]
    group: str = ""


async def find_image(hierarchy: Hierarchy, node: Node) -> Found:
    """Return the image that *node* is, or is a level of; the node alone if there is none.

    Raises `NotFoundError` for a node that is no array either.
    """
    image = image_in(node)
    if image is not None:
        return Found(image, image.levels, node.path)
    if not isinstance(node.metadata, ArrayMetadata) and node.reason is None:
        raise NotFoundError(f"{node.path or 'the source'} is neither a Zarr v3 array nor an image of OME-Zarr")
    for above, _ in list(groups_above(node.path))[:_FAR_ABOVE]:
        image = image_in(await hierarchy.node(above))
        if image is not None and node.path in image.levels:
            return Found(image, image.levels[image.levels.index(node.path) :], above)
    return Found(None, [node.path])


class Pyramid(NamedTuple):
    """The *levels* of an image, the finest first, or an array alone; *image* is what they are part of, at *group*."""

    levels: tuple[Decoded, ...]
    names: tuple[str | None, ...]
    image: Image | None
    group: str
    channels: Channels | None

    @property
    def base(self) -> Decoded:
        """The array whose elements are counted."""
        return self.levels[0]

    @property
    def usual_colors(self) -> str:
        """How numbers are shown if nobody says otherwise: in gray, and variables with a unit or a name in colours."""
        if self.image is not None:
            return LABELS if self.image.is_labels and self.base.dtype.kind in "iu" else TABLES[0]
        variable = self.base.variable
        return _VIRIDIS if (variable.unit or variable.title) and self.base.dtype.kind != "b" else TABLES[0]

    def fitting(self, choice: Choice, pixels: int) -> tuple[Decoded, Choice]:
        """Return the coarsest level that has enough elements, and the plane in it."""
        base, best = self.base, (self.base, choice)
        wanted = min(pixels, choice.pixels)
        for level in self.levels[1:]:
            scaled = choice.scaled(base.shape, level.shape)
            if wanted <= scaled.pixels < best[1].pixels:
                best = level, scaled
        return best


async def find_pyramid(paths: Paths, path: str) -> Pyramid:
    """Return what is drawn for the array or the image at *path* of a decoded view.

    Raises `NotFoundError` if it is neither, and `NotShownError` with the reason if there is no picture of it.
    """
    await foresee(paths.source, path)
    node = await paths.source.hierarchy.node(path)
    image, wanted, group = await find_image(paths.source.hierarchy, node)
    opened: dict[str, Decoded] = {}

    async def look(level: str) -> None:
        try:
            opened[level] = await open_decoded(paths, level)
        except ShardfsError:
            if level == wanted[0]:
                raise

    await for_each(wanted, look, len(wanted))
    base = opened[wanted[0]]
    levels = [opened[level] for level in wanted if level in opened]
    usable = tuple(level for level in levels if _is_smaller(level, base))
    names = base.names
    if image is not None and not any(names) and len(image.axes) == len(base.shape):
        names = image.axes
    channels = channels_of(image, names, base.shape, base.dtype.kind, base.dtype.itemsize)
    if channels is not None and channels.are_colors and names[channels.axis] is None:
        names = ("y", "x", "rgb")  # as nobody says
    return Pyramid(usable, names, image, group, channels)


def _is_smaller(level: Decoded, base: Decoded) -> bool:
    if level is base:
        return True
    return len(level.shape) == len(base.shape) and all(
        after <= before for after, before in zip(level.shape, base.shape, strict=True)
    )


class Read(NamedTuple):
    """The planes of a scene that were read, labels over them, each on the same elements, and the axes.

    If rows *are_flipped*, the first one that is drawn is the last one of the plane.
    """

    planes: list[Plane]
    labels: list[tuple[Elements, Mask]]
    label_planes: list[Plane]
    axes: Axes
    are_flipped: bool

    def layers(self, scene: "Scene") -> list[PlaneLayer]:
        """Return what is to be drawn, of two axes."""
        found = []
        for plane in self.planes:
            shape = {0: (1, 1), 1: (1, -1), 2: plane.elements.shape}[plane.elements.ndim]
            parts = (each.reshape(shape) for each in (plane.elements, plane.are_known, plane.are_stored))
            elements, known, stored = (each[::-1] if self.are_flipped else each for each in parts)
            found.append(PlaneLayer(elements, known, stored, scene.level.variable, scene.level.fill))
        return found

    @property
    def version(self) -> Hashable:
        """What is equal for equal pictures of one style, in every process; None if nothing tells versions apart."""
        versions = [plane.seen.version for plane in [*self.planes, *self.label_planes]]
        return None if None in versions or not self.axes.is_known else (tuple(versions), self.axes.versions)

    @property
    def ttl(self) -> float:
        """For how many seconds it may be taken for the present."""
        return min([self.axes.ttl, *(plane.seen.ttl for plane in [*self.planes, *self.label_planes])])


class Overlay(NamedTuple):
    """Labels that are shown over an image: the plane to be read."""

    name: str
    cut: Cut


class Scene:
    """What a *query* shows of a *pyramid*: the plane *choice*, in *level* as *scaled*; *shown* are its channels.

    If these are empty, one plane is drawn in the colours of numbers. *problems* say what is not shown, and why.
    """

    def __init__(self, paths: Paths, pyramid: Pyramid, query: Query) -> None:
        self.pyramid = pyramid
        self.query = query
        self.choice = choice = Choice.of(pyramid.base.shape, pyramid.names, query)
        self.level, self.scaled = pyramid.fitting(choice, query.pixels)
        self.shown = self._channels()
        self.overlays: list[Overlay] = []
        self.problems: list[str] = []
        self._paths = paths
        level, scaled = self.level, self.scaled
        samples = sampled(level, scaled.axes, scaled.spans, query.pixels, max(len(self.shown), 1))
        self.cuts = [Cut(level, scaled.axes, samples, at) for at in self.at(scaled.at)]

    def _channels(self) -> tuple[int, ...]:
        channels, asked = self.pyramid.channels, self.query.channels
        if channels is None or channels.axis in self.choice.axes or len(self.choice.axes) != 2:
            return ()
        if asked is None:
            is_single = channels.axis in self.query.indices or self.query.style.colors is not None
            return () if is_single and not channels.are_colors else channels.usual
        return tuple(number for number in asked if number < len(channels.channels))

    def at(self, at: tuple[int, ...]) -> list[tuple[int, ...]]:
        """Return the indices for each channel that is shown."""
        channels = self.pyramid.channels
        if not self.shown or channels is None:
            return [at]
        return [(*at[: channels.axis], number, *at[channels.axis + 1 :]) for number in self.shown]

    @classmethod
    async def find(cls, paths: Paths, path: str, query: Query) -> "Scene":
        """Find what a query shows of the array or the image at *path*; raises the error that prevents it."""
        scene = cls(paths, await find_pyramid(paths, path), query)
        for name in query.labels:
            try:
                await scene._add_labels(name)
            except ShardfsError as error:
                scene.problems.append(f"labels {name[:40]} are not shown: {error}")
        return scene

    async def _add_labels(self, name: str) -> None:
        if self.pyramid.image is None or not is_relative_path(name) or len(self.choice.axes) != 2:
            raise NotFoundError("there are none of this image")
        found = await find_pyramid(self._paths, join_key(join_key(self.pyramid.group, "labels"), name))
        mapped = self._in_labels(found)
        level, scaled = found.fitting(mapped, self.query.pixels)
        pixels = max(along.length for along in self.cuts[0].samples)
        samples = sampled(level, scaled.axes, scaled.spans, pixels)
        self.overlays.append(Overlay(name, Cut(level, scaled.axes, samples, scaled.at)))

    def _in_labels(self, labels: Pyramid, choice: Choice | None = None) -> Choice:
        """Return the plane in an image of labels whose axes have the same names."""
        choice = self.choice if choice is None else choice
        names, shape = self.pyramid.names, self.pyramid.base.shape
        own = {name: axis for axis, name in enumerate(labels.names) if name is not None}
        if labels.base.dtype.kind not in "iu" or not all(names[axis] in own for axis in choice.axes):
            raise NotFoundError("its axes are not those of the image, or it has no labels")
        at = [0] * len(labels.base.shape)
        spans = []
        for axis, name in enumerate(names):
            if name in own:
                length = labels.base.shape[own[name]]
                at[own[name]] = min(choice.at[axis] * length // shape[axis], length - 1)
        for axis, (start, stop) in zip(choice.axes, choice.spans, strict=True):
            length = labels.base.shape[own[names[axis] or ""]]
            begin = start * length // shape[axis]
            spans.append((begin, max(begin + 1, -(-stop * length // shape[axis]))))
        return Choice(tuple(own[names[axis] or ""] for axis in choice.axes), tuple(spans), tuple(at))

    @property
    def style(self) -> Style:
        """How numbers are drawn."""
        style, channels = self.query.style, self.pyramid.channels
        style = style._replace(colors=style.colors or self.pyramid.usual_colors)
        is_free = style.least is None and style.most is None and not style.asks_percentiles
        if channels is not None and channels.axis not in self.choice.axes and is_free and style.colors != LABELS:
            number = self.choice.at[channels.axis]
            window = channels.channels[number].window if number < len(channels.channels) else None
            style = style if window is None else style._replace(least=window[0], most=window[1])
        return style

    @property
    def tints(self) -> list[Tint]:
        """How the channels are drawn that are shown."""
        channels = self.pyramid.channels
        assert channels is not None
        return [Tint(channels.channels[number].color, channels.channels[number].window) for number in self.shown]

    @property
    def meaning(self) -> Hashable:
        """What makes another picture of the same bytes."""
        return self.style, self.query.labels, [*map(tuple, self.tints)] if self.shown else None

    async def look(self) -> tuple[Hashable, float]:
        """Return the version of what is read, without reading it, and for how many seconds that may be taken for it."""
        versions: list[Hashable] = [None] * len(self._all)
        ttls: list[float] = []

        async def look(number: int) -> None:
            seen = await look_at(self._paths, self._all[number])
            versions[number] = seen.version
            ttls.append(seen.ttl)

        await for_each(range(len(self._all)), look, len(self._all))
        axes = await self.axes(reads=False)
        is_known = None not in versions and axes.is_known
        return ((tuple(versions), axes.versions) if is_known else None), min([axes.ttl, *ttls])

    @property
    def nchunks(self) -> int:
        """How many chunks the plane takes; channels may share them."""
        if len(self.cuts) == 1:
            return self.cuts[0].nchunks
        return len({cut.path_of(piece) for cut in self.cuts for piece in cut.in_chunks()})

    @property
    def _all(self) -> list[Cut]:
        return [*self.cuts, *(overlay.cut for overlay in self.overlays)]

    async def axes(self, *, reads: bool = True) -> Axes:
        """Return the axes of the array that is counted."""
        return await find_axes(self._paths, self.pyramid.base, self.pyramid.names, self.pyramid.image, reads=reads)

    async def read(self) -> Read:
        """Read everything that is shown."""
        planes: dict[int, Plane] = {}
        found: list[Axes] = []

        async def read(number: int) -> None:
            planes[number] = await read_plane(self._paths, self._all[number])

        async def read_axes() -> None:
            found.append(await self.axes())

        async with open_nursery() as nursery:
            nursery.start_soon(read_axes)
            for number in range(len(self._all)):
                nursery.start_soon(read, number)
        axes, count = found[0], len(self.cuts)
        are_flipped = len(self.choice.axes) == 2 and axes[self.choice.axes[0]].grows_north
        shown, labels = (
            [planes[number] for number in range(count)],
            [planes[number] for number in range(count, len(planes))],
        )
        over = [_fitted(plane, shown[0].elements.shape) for plane in labels]
        if are_flipped:
            over = [(numbers[::-1], known[::-1]) for numbers, known in over]
        return Read(shown, over, labels, axes, are_flipped)

    async def read_at(self, *, is_finest: bool) -> tuple[Decoded, Choice, list[Plane], Mapping[str, Plane]]:
        """Read the marked element: of which level, its indices, that of each channel, and that of labels by name."""
        choice = self.choice.placed(self.pyramid.base.shape, self.query.place)
        level, at = self.pyramid.base, choice
        if not is_finest:
            level, at = self.level, choice.scaled(self.pyramid.base.shape, self.level.shape)
        planes: dict[int, Plane] = {}
        labels: dict[str, Plane] = {}
        indices = self.at(at.at)

        async def read(number: int) -> None:
            planes[number] = await read_plane(self._paths, Cut(level, (), (), indices[number]))

        async def read_label(overlay: Overlay) -> None:
            with suppress(ShardfsError):
                found = await find_pyramid(self._paths, overlay.cut.array.path)
                there = self._in_labels(found, choice._replace(axes=self.choice.axes, spans=self.choice.spans))
                labels[overlay.name] = await read_plane(self._paths, Cut(found.base, (), (), there.at))

        async with open_nursery() as nursery:
            for number in range(len(indices)):
                nursery.start_soon(read, number)
            for overlay in self.overlays:
                nursery.start_soon(read_label, overlay)
        return level, choice, [planes[number] for number in range(len(indices))], labels


def _fitted(plane: Plane, shape: tuple[int, ...]) -> tuple[Elements, Mask]:
    """Return labels for each element of a plane of this *shape*: the nearest one."""
    rows, columns = (
        np.minimum(((np.arange(length) + 0.5) * have / length).astype(np.intp), have - 1)
        for length, have in zip(shape, plane.elements.shape, strict=True)
    )
    return plane.elements[np.ix_(rows, columns)], plane.are_known[np.ix_(rows, columns)]
