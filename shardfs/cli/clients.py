"""Programs that do not read sharded arrays: what they print about one, and which mount they can read."""

import json
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Final

from shardfs.bulk.info import ViewOptions
from shardfs.dataset.node import Node
from shardfs.errors import MetadataError, counted
from shardfs.format.codecs import compose, composed_order
from shardfs.format.document import Extension
from shardfs.format.lens.unsharded import fault_of
from shardfs.format.lens.v2_attributes import has_missing_value
from shardfs.format.metadata import ArrayMetadata
from shardfs.stores.base import join_key
from shardfs.stores.url import StoreOptions


@dataclass(frozen=True, slots=True)
class Tool:
    """A program, and what it understands of Zarr.

    *says* is its message for a sharded array. *views* are those that it reads, the best first; *opens* is how to open a
    dataset mounted at /mnt/x with an array `image`, "" if it reads no Zarr. *opens_without* is how to open in Python,
    without a mount, what `shardfs.open({})` returns, "" if the program is not written in Python, or does not take it;
    *opens_array* is how to open the array at the path that is the second {} in it, if the dataset is no group at its
    top. How it opens groups of other formats, those say: `Foreign.programs`, by its name. *caveat* says what else it
    gets wrong. A program that reads URLs, *reads_urls*, is given what `shardfs serve` serves; one that is *remote*
    reads nothing else, and *opens* is a URL then.

    It knows the *data_types* and the *codecs* (None is all, "numcodecs.*" every codec with that prefix), up to
    *max_codecs* of them, and both byte orders unless it *assumes_little_endian*. If it *inverts_transposes*, it reads
    only those that are their own inverse. It reads arrays of at least *min_ndim* axes, which are not empty if it
    *needs_elements*. If it *masks_fill_values*, it takes v3 fill values for missing values even if axes have names. A
    tool that *copies* needs none of that.
    """

    name: str
    says: str
    views: tuple[ViewOptions, ...]
    opens: str = ""
    opens_without: str = ""
    opens_array: str = ""
    data_types: frozenset[str] | None = None
    codecs: frozenset[str] | None = None
    max_codecs: int | None = None
    assumes_little_endian: bool = False
    inverts_transposes: bool = False
    min_ndim: int = 0
    needs_elements: bool = False
    masks_fill_values: bool = False
    copies: bool = False
    reads_urls: bool = False
    is_remote: bool = False
    caveat: str = ""

    def without_mount(
        self,
        source: str,
        shown: ViewOptions,
        options: StoreOptions,
        *,
        drafts: Sequence[str] = (),
        array: str | None = None,
    ) -> str:
        """Return the line, of Python or a command, with which it reads *source* in the view *shown* without a mount.

        It has arrays that only *drafts* allow. If *source* is no group at its top, *array* is the path of one in it.
        """
        words = [*options.to_arguments(), *(f"--draft={draft}" for draft in drafts)]
        if self.reads_urls:
            return shlex.join(["shardfs", "serve", *words, source])
        if not self.opens_without:
            return shlex.join(["shardfs", "unpack", *words, *shown.text.split(), source, "DIR"])
        arguments = [_code(source)]
        arguments += [f"view={_code(shown.view)}"] if shown.view != "v3" else []
        arguments += ["decode=True"] if shown.decode else []
        arguments += [f"draft={_code(draft)}" for draft in drafts]
        values = [(field, getattr(options, field.name)) for field in fields(options)]
        given = ", ".join(f"{field.name}={_code(value)}" for field, value in values if value != field.default)
        arguments += [f"store_options=shardfs.StoreOptions({given})"] if given else []
        if array is not None and self.opens_array:
            return self.opens_array.format(", ".join(arguments), _code(array))
        return self.opens_without.format(", ".join(arguments))

    def to_open(self, own: "OwnForm") -> str | None:
        """Return how it opens a group of another format, of a mount at /MNT or a server; None if it does not."""
        line = own.programs.get(self.name)
        return line.format(join_key("" if self.is_remote else "/MNT", own.path)) if line is not None else None

    def misses(self, node: Node, shown: ViewOptions, skipped: str | None) -> str | None:
        """Return why this tool cannot read the array of *node* in the view *shown*; None if it can.

        *skipped* says why the view does not show the array, if it does not.
        """
        metadata, reason = node.metadata, skipped or node.reason
        if reason is not None or self.copies or not isinstance(metadata, ArrayMetadata):
            return reason
        own = own_form_of(node)
        if own is not None and self.name in own.programs:
            return None if shown == _V3 else f"it opens it in the format {own.format}, which {_V3.text} shows"
        if own is not None and shown == _V3:
            return f"it is shown in the format {own.format}, not as Zarr"
        if not self.opens:
            return "it does not read Zarr"
        data_type = _name_of(metadata.document["data_type"])
        if self.data_types is not None and data_type not in self.data_types:
            return f"it does not know the data type {data_type}"
        if metadata.ndim < self.min_ndim:
            return f"it reads only arrays with at least {counted(self.min_ndim, 'dimension')}"
        if self.needs_elements and 0 in metadata.shape:
            return "it does not read arrays without elements"
        masks = self.masks_fill_values and shown.view == "v3" and not node.in_image and metadata.ndim
        if masks and has_missing_value(metadata.document):
            return "it takes the fill value of v3 as missing value, and masks stored values"
        if shown.decode or shown.view == "npy":
            return None
        if node.any_array is None and (fault := fault_of(metadata)) is not None:
            return fault
        if shown.view == "v3" and node.array is None and metadata.chunk_grid.name != "regular":
            return f"it may not know the chunk grid {metadata.chunk_grid.name}, and the array is not sharded"
        try:
            return self._misses_codecs((node.any_array or metadata).codecs, metadata.ndim)
        except MetadataError as error:
            return str(error)

    def _misses_codecs(self, codecs: Sequence[Extension], ndim: int) -> str | None:
        if self.assumes_little_endian and any(codec.configuration.get("endian") == "big" for codec in codecs):
            return "it reads big-endian chunks as little-endian"
        order = composed_order([codec for codec in codecs if codec.name == "transpose"], ndim)
        if self.inverts_transposes and compose(order, order) != tuple(range(ndim)):
            return f"it takes a transpose to {list(order)} for its inverse, and gives wrong values"
        names = [codec.name for codec in codecs if codec.name not in ("transpose", "bytes")]
        if self.codecs is not None:
            unknown = [name for name in names if re.sub(r"^numcodecs\..*", "numcodecs.*", name) not in self.codecs]
            if unknown:
                return f"it does not know the codec {', '.join(unknown)}"
        if self.max_codecs is not None and len(names) > self.max_codecs:
            return f"it applies only {self.max_codecs} of the codecs {', '.join(names)}"
        return None


@dataclass(frozen=True)
class OwnForm:
    """A group of another *format* at *path*, which is shown as such in the usual view, and how *programs* open it."""

    format: str
    path: str
    programs: Mapping[str, str]


def own_form_of(node: Node) -> OwnForm | None:
    """Return the group that the array *node* is described with; None if there is none, or it is shown as Zarr alone."""
    if node.described_within is None or node.metadata is None:
        return None
    path, within = node.described_within
    return OwnForm(within.format, path, within.programs) if within.documents else None


def _code(value: object) -> str:
    return json.dumps(value, ensure_ascii=False) if isinstance(value, str) else repr(value)


def _name_of(data_type: object) -> str:
    name = str(data_type["name"] if isinstance(data_type, dict) else data_type)
    return "r*" if name[:1] == "r" and name[1:].isdecimal() else name


_V3: Final = ViewOptions("v3")
_V3_DECODED: Final = ViewOptions("v3", decode=True)
_V2: Final = ViewOptions("v2")
_V2_DECODED: Final = ViewOptions("v2", decode=True)
_NPY: Final = ViewOptions("npy")

_INTEGERS: Final = frozenset(f"{kind}{bits}" for kind in ("int", "uint") for bits in (8, 16, 32, 64))
_NUMBERS: Final = _INTEGERS | {"bool", "float16", "float32", "float64"}
_COMPLEX: Final = frozenset({"complex64", "complex128"})
_TIMES: Final = frozenset({"numpy.datetime64", "numpy.timedelta64"})
_BYTES: Final = frozenset({"fixed_length_utf32", "null_terminated_bytes", "raw_bytes", "r*", "struct"})
_STRINGS: Final = frozenset({"string", "bytes", "variable_length_bytes"})
_SMALL: Final = frozenset({"bfloat16", "int2", "int4", "float4_e2m1fn"}) | {
    f"float8_{name}" for name in ("e3m4", "e4m3fn", "e4m3fnuz", "e4m3b11fnuz", "e5m2", "e5m2fnuz")
}
_COMPRESSORS: Final = frozenset({"gzip", "zstd", "blosc"})

TOOLS: Final = (
    Tool(
        "zarr-python 2.18",
        "GroupNotFoundError: group not found at path ''",
        (_V2, _V2_DECODED),
        'zarr.open_group("/mnt/x")',
        "zarr.open_group(shardfs.open({}).filesystem().get_mapper())",
        "zarr.open_array(shardfs.open({}).filesystem().get_mapper({}))",
    ),
    Tool(
        "xarray and dask on zarr-python 2",
        "FileNotFoundError: No such file or directory",
        (_V2, _V2_DECODED),
        'xarray.open_zarr("/mnt/x")',
        "xarray.open_zarr(shardfs.open({}).filesystem().get_mapper())",
        "dask.array.from_zarr(shardfs.open({}).filesystem().get_mapper({}))",
    ),
    Tool(
        "GDAL 3.6 (Debian 12)",
        "not recognized as a supported file format",
        (_V2, _V2_DECODED),
        "gdalmdiminfo /mnt/x",
        data_types=_NUMBERS,
        codecs=_COMPRESSORS,
        max_codecs=1,
        needs_elements=True,
    ),
    Tool(
        "rasterio 1.5 (GDAL 3.12)",
        "Unsupported codec: sharding_indexed",
        (_V3, _V3_DECODED, _V2, _V2_DECODED),
        'rasterio.open("/mnt/x/image")',
        data_types=_NUMBERS | _COMPLEX,
        codecs=_COMPRESSORS,
        inverts_transposes=True,
        masks_fill_values=True,
    ),
    Tool(
        "netCDF-C 4.9 (Debian 12)",
        "an empty dataset, and success",
        (_V2_DECODED,),
        "ncdump 'file:///mnt/x#mode=zarr,file'",
        data_types=_INTEGERS | {"float32", "float64"},
        min_ndim=1,
        needs_elements=True,
        caveat="an array that it cannot read makes it fail on the whole group, and it takes axes of one name for "
        "one dimension, whatever their lengths; ncdump stops at the value of an array without axes (use -h, or -v)",
    ),
    Tool(
        "tensorstore, driver zarr",
        "NOT_FOUND: … Metadata at local file … does not exist",
        (_V2, _V2_DECODED),
        '{"driver": "zarr", "kvstore": "file:///mnt/x/image/"}',
        data_types=_NUMBERS | _COMPLEX,
        codecs=_COMPRESSORS,
        max_codecs=1,
    ),
    Tool(
        "tensorstore, driver zarr3",
        "is not compatible with subsequent bytes -> bytes codecs (if shards are compressed as a whole)",
        (_V3, _V3_DECODED),
        '{"driver": "zarr3", "kvstore": "file:///mnt/x/image/"}',
        data_types=_NUMBERS | _COMPLEX | _SMALL,
        codecs=_COMPRESSORS | {"crc32c"},
    ),
    Tool(
        "cloud-volume 12",
        "sharded volumes are not currently supported",
        (_V3, _V3_DECODED),
        'CloudVolume("zarr3://file:///mnt/x/image")',
        data_types=_NUMBERS,
        codecs=_COMPRESSORS | {"crc32c"},
        assumes_little_endian=True,
        min_ndim=3,
    ),
    Tool(
        "tensorstore, driver neuroglancer_precomputed",
        "nothing, it reads no Zarr",
        (_V3,),
    ),
    Tool(
        "zarr-python 3.1",
        "Unknown chunk grid. Got rectilinear. (if shards have different sizes)",
        (_V3, _V3_DECODED),
        'zarr.open("/mnt/x")',
        "zarr.open(shardfs.open({}).store())",
        "zarr.open_array(shardfs.open({}).store(), path={})",
        _NUMBERS | _COMPLEX | _TIMES | _BYTES | _STRINGS,
        _COMPRESSORS | {"crc32c", "vlen-utf8", "vlen-bytes", "numcodecs.*"},
    ),
    Tool(
        "zarr-python 3.4",
        "Rectilinear chunk grids are experimental and disabled by default. (if shards have different sizes)",
        (_V3, _V3_DECODED),
        'zarr.open("/mnt/x")',
        "zarr.open(shardfs.open({}).store())",
        "zarr.open_array(shardfs.open({}).store(), path={})",
        _NUMBERS | _COMPLEX | _TIMES | _BYTES | _STRINGS,
        _COMPRESSORS | {"crc32c", "vlen-utf8", "vlen-bytes", "numcodecs.*", "scale_offset", "cast_value"},
        caveat="without a mount, and of arrays that are not sharded, it reads rectilinear grids only after "
        'zarr.config.set({"array.rectilinear_chunks": True}), or with ZARR_ARRAY__RECTILINEAR_CHUNKS=True',
    ),
    Tool(
        "neuroglancer",
        "nothing is shown, if it comes from a server without ranges, such as python -m http.server",
        (_V3,),
        "http://127.0.0.1:8000/image/, and its link",
        data_types=_INTEGERS - {"int64"} | {"float32"},
        codecs=_COMPRESSORS | {"crc32c"},
        reads_urls=True,
        is_remote=True,
        caveat="images of OME-Zarr open with their labels",
    ),
    Tool(
        "vizarr",
        "not known",
        (_V2, _V3),
        "http://127.0.0.1:8000/image/, and its link",
        data_types=_INTEGERS - {"int64", "uint64"} | {"float32", "float64"},
        codecs=_COMPRESSORS,
        max_codecs=1,
        reads_urls=True,
        is_remote=True,
        caveat="it shows images of OME-Zarr",
    ),
    Tool(
        "napari 0.9 with napari-ome-zarr 0.10",
        "nothing, it reads what zarr-python 3 does",
        (_V3, _V3_DECODED, _V2, _V2_DECODED),
        "napari --plugin napari-ome-zarr /mnt/x/image",
        data_types=_NUMBERS,
        codecs=_COMPRESSORS | {"crc32c"},
        reads_urls=True,
        caveat="it shows images of OME-Zarr, and opens URLs with .zarr in them alone",
    ),
    Tool(
        "Fiji with N5 plugins (untested)",
        "not known",
        (_V2,),
        "File > Import > HDF5/N5/Zarr/OME-NGFF, /mnt/x",
        data_types=_INTEGERS | {"float32", "float64"},
        codecs=_COMPRESSORS,
        max_codecs=1,
    ),
    Tool(
        "ITK 5.4 with IOOMEZarrNGFF 0.3",
        "Failed to read from image/.zgroup",
        (_V2,),
        'itk.imread("/mnt/x/image", imageio=itk.OMEZarrNGFFImageIO.New())',
        data_types=_INTEGERS | {"float32", "float64"},
        codecs=_COMPRESSORS,
        max_codecs=1,
        reads_urls=True,
        caveat="it reads images of OME-Zarr, of several channels the first, and takes URLs of /-/v2/ too",
    ),
    Tool(
        "numpy, Julia, MATLAB, C",
        "nothing, they read no Zarr",
        (_NPY,),
        'numpy.load("/mnt/x/image.npy", mmap_mode="r")',
        'numpy.load(shardfs.open({}).filesystem().open("image.npy"))',
    ),
    Tool(
        "cp, rsync, sha256sum",
        "a shard is one file",
        (_V3,),
        "rsync -a /mnt/x/image elsewhere/",
        copies=True,
    ),
)
