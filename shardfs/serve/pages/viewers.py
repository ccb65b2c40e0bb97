"""Links that open what is served in third-party programs, and what to type for those that have no links.

A link is only followed when somebody clicks it: the page itself loads nothing from other hosts.
"""

import json
from collections.abc import Sequence
from typing import Final, NamedTuple
from urllib.parse import quote

from shardfs.errors import printable

NEUROGLANCER: Final = "https://neuroglancer-demo.appspot.com/"
VIZARR: Final = "https://hms-dbmi.github.io/vizarr/"
VALIDATOR: Final = "https://ome.github.io/ome-ngff-validator/"


class Link(NamedTuple):
    """A *url* that opens a program of this *name*."""

    name: str
    url: str


_NOT_IN_SPACE: Final = ("c", "t", "channel", "time")
_WINDOW: Final = 1000
"""The width in pixels that a picture has at first."""


class Subject(NamedTuple):
    """What is to be opened: the *path* of a node of Zarr, the *labels* of an image, and what it is.

    *axes* are the names of its axes, None for those without, and *shape* their lengths, if they are known. *numbers*
    is the data type of an array, or of the levels of an image, if its chunks are numbers that every library decodes;
    *is_transposed*: their axes are in another order.
    *in_v2*, *in_npy*: these views show it. *dataset* is the path of the group by which xarray opens
    it, None without one.
    """

    path: str
    labels: Sequence[str] = ()
    is_array: bool = False
    is_image: bool = False
    is_labels: bool = False
    axes: Sequence[str | None] = ()
    shape: Sequence[int] = ()
    numbers: str | None = None
    is_transposed: bool = False
    in_v2: bool = False
    in_npy: bool = False
    dataset: str | None = None


_IN_NEUROGLANCER: Final = frozenset({"uint8", "uint16", "uint32", "uint64", "int8", "int16", "int32", "float32"})
_IN_VIZARR: Final = frozenset({"uint8", "uint16", "uint32", "int8", "int16", "int32", "float32", "float64"})
_IN_R: Final = _IN_VIZARR
"""Of others, R has no type: its package makes zeros of int64."""
_IN_JULIA: Final = _IN_R | {"bool", "uint64", "int64", "float16"}


def links(address: str, subject: Subject) -> list[Link]:
    """Return the links for what is served at *address*, which ends with a slash, in viewers that show such a node."""
    found = []
    if subject.numbers in _IN_NEUROGLANCER and len(subject.shape) > 1:
        found.append(Link("neuroglancer", neuroglancer(NEUROGLANCER, address, subject)))
    if subject.is_image and subject.in_v2 and subject.numbers in _IN_VIZARR:
        source = quote(_url(address, "v2", subject.path), safe="")
        found.append(Link("vizarr", f"{VIZARR}?source={source}"))
    if subject.is_image:
        source = quote(_url(address, "v3", subject.path), safe="")
        found.append(Link("OME-NGFF validator", f"{VALIDATOR}?source={source}"))
    return found


def neuroglancer(client: str, address: str, subject: Subject) -> str:
    """Return the URL that opens *subject* in the neuroglancer *client*."""
    layers = [_layer(address, subject.path, is_labels=subject.is_labels)]
    layers += [_layer(address, path, is_labels=True) for path in subject.labels]
    # Its x, y and z are the first axes, so the rows and columns of a volume are in its y and z.
    in_space = [axis for axis in subject.axes if axis not in _NOT_IN_SPACE]
    state: dict[str, object] = {"layers": layers, "layout": "yz" if len(in_space) > 2 else "xy"}
    if subject.shape:
        state["crossSectionScale"] = max(1, *subject.shape[-2:]) / _WINDOW
    return f"{client}#!{quote(json.dumps(state), safe='')}"


def _layer(address: str, path: str, *, is_labels: bool) -> dict[str, str]:
    name = printable(path.rpartition("/")[2]) or "source"
    source = f"zarr3://{address}-/v3/{_quoted(path)}"
    return {"type": "segmentation" if is_labels else "image", "name": name, "source": source}


def snippets(address: str, subject: Subject) -> list[tuple[str, str]]:
    """Return the programs that open such a node, and the line that does it in each."""
    url = _url(address, "v3", subject.path)
    kvstore = json.dumps({"driver": "http", "base_url": f"{url}/"})
    found = [("zarr-python", f'zarr.open("{url}", mode="r")')]
    if subject.dataset is not None:
        name = f"[{json.dumps(subject.path.rpartition('/')[2], ensure_ascii=False)}]" if subject.is_array else ""
        found.append(("xarray", f'xarray.open_zarr("{_url(address, "v3", subject.dataset)}"){name}'))
    if subject.is_array and subject.numbers is not None:
        found.append(("tensorstore", f'tensorstore.open({{"driver": "zarr3", "kvstore": {kvstore}}}).result()'))
    if subject.is_image:
        if subject.in_v2 and subject.numbers in _IN_VIZARR:
            v2 = _url(address, "v2", subject.path)
            found.append(("ITK", f'itk.imread("{v2}", imageio=itk.OMEZarrNGFFImageIO.New())'))
        found.append(("ngff-zarr", f'ngff_zarr.from_ngff_zarr("{url}")'))
        if ".zarr" in url:  # its plugin opens no other URLs
            found.append(("napari", f"napari --plugin napari-ome-zarr {url}"))
    found.append(("fsspec", f'fsspec.get_mapper("{url}")'))
    if subject.in_npy:
        npy = f"{address}-/npy/{_quoted(subject.path)}.npy"
        found.append(("NumPy", f'numpy.load(io.BytesIO(urllib.request.urlopen("{npy}").read()))'))
    if subject.is_array and subject.numbers in _IN_R and not subject.is_transposed:  # its package fails
        found.append(("R", f'zarr::open_zarr("{url}")[["/"]][]'))
    if subject.is_array and subject.numbers in _IN_JULIA:
        found.append(("Julia", f'Zarr.zopen("{url}")'))
    return found


def _url(address: str, view: str, path: str) -> str:
    return f"{address}-/{view}/{_quoted(path)}".rstrip("/")


def _quoted(path: str) -> str:
    return quote(path.encode("utf-8", "surrogateescape"), safe="/")
