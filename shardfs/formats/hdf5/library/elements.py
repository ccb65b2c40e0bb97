"""Types of elements, and values of attributes, as JSON has them."""

from typing import Any, Final

import h5py
import h5py.h5t as h5t
import numpy as np

from .channel import Json

ERRORS: Final = (OSError, RuntimeError, ValueError, TypeError, KeyError, IndexError, OverflowError, AttributeError)
"""What h5py raises where a file is damaged, or has what h5py does not know."""

_BITS: Final = (8, 16, 32, 64)
MAX_ELEMENT_NBYTES: Final = 2**20
"""How large an element may be: one of the fill value is in each description of a dataset."""

_FLOATS: Final = {2: ("F16LE", "F16BE"), 4: ("F32LE", "F32BE"), 8: ("F64LE", "F64BE")}


class AbsentName(Exception):  # noqa: N818 - an answer
    """There is no such name, or it is skipped for the reason in the message."""


def brief(error: BaseException) -> str:
    """Return what an error says."""
    text = error.args[0] if isinstance(error, KeyError) and error.args else error
    return str(text)[:200] or type(error).__name__


def as_text(name: bytes) -> str:
    """Return a name of HDF5 as Python has names of files."""
    return name.decode("utf-8", "surrogateescape")


def as_bytes(text: Any) -> bytes:  # noqa: ANN401 - text as h5py has it
    """Return the bytes of a text; none of what is no text."""
    if isinstance(text, str):
        return text.encode("utf-8", "surrogateescape")
    return bytes(text) if isinstance(text, bytes) else b""


def data_type(kind: Any) -> tuple[Json, bool, tuple[int, ...]]:  # noqa: ANN401 - a TypeID
    """Return the type of elements, whether they are stored just so, and the axes of each element.

    The type is "string" if it is text of any length, else as in the `dtype` of Zarr v2: in the byte order in which
    elements are stored, or little-endian if they are stored in another way. Raises `AbsentName` for another one.
    """
    if kind.get_class() == h5t.ARRAY:
        descr, is_exact, inner = data_type(kind.get_super())
        return descr, is_exact, (*kind.get_array_dims(), *inner)
    if kind.get_class() == h5t.STRING and kind.is_variable_str():
        return "string", False, ()
    try:
        dtype = kind.dtype
    except (TypeError, ValueError, NotImplementedError) as error:
        raise AbsentName(f"elements of its type have no form in NumPy: {brief(error)}") from None
    _check(dtype)
    if not _is_exact(kind, dtype):
        return _descr(dtype.newbyteorder("<")), False, ()
    return _descr(dtype), True, ()


def dtype_of(descr: Json) -> Any:  # noqa: ANN401
    """Return the dtype of a type that is no "string"."""
    return np.dtype(descr) if isinstance(descr, str) else np.dtype([(name, dtype_of(field)) for name, field in descr])


def fill_value(identifier: Any, descr: Json) -> Json:  # noqa: ANN401 - a DatasetID
    """Return the fill value: text, or a little-endian element in hexadecimal digits; None if that is zeros, or none.

    Raises `AbsentName` if an element has several values, as an array, or none that h5py reads.
    """
    if identifier.get_create_plist().fill_value_defined() != h5py.h5d.FILL_VALUE_USER_DEFINED:
        return None
    value = not_written(identifier)
    if descr == "string":
        return as_bytes(value).decode(errors="replace")
    elements = np.asarray(value).reshape(-1).astype(dtype_of(descr).newbyteorder("<"))
    parts = {each.tobytes() for each in elements}
    if len(parts) != 1:
        raise AbsentName("the parts of its fill value differ")
    (element,) = parts
    return element.hex() if any(element) else None


def not_written(identifier: Any) -> Any:  # noqa: ANN401 - a DatasetID
    """Return an element that is not written; raises `AbsentName` if it is too large, or h5py does not read it."""
    kind = identifier.get_type()
    if kind.get_class() != h5t.ARRAY:
        try:
            return h5py.Dataset(identifier).fillvalue
        except ERRORS:
            if kind.get_class() != h5t.OPAQUE:
                raise
            raise AbsentName("h5py does not read its fill value") from None
    # Of an array, h5py does not read the fill value, but elements of a dataset that has it.
    if kind.get_size() > MAX_ELEMENT_NBYTES:
        raise AbsentName(f"its fill value has {kind.get_size():,} bytes, more than {MAX_ELEMENT_NBYTES:,}")
    own = identifier.get_create_plist().copy()
    own.remove_filter(h5py.h5z.FILTER_ALL)
    own.set_layout(h5py.h5d.CONTIGUOUS)
    own.set_fill_time(h5py.h5d.FILL_TIME_IFSET)
    own.set_alloc_time(h5py.h5d.ALLOC_TIME_LATE)
    with h5py.File("an element", "w", driver="core", backing_store=False) as file:
        space = h5py.h5s.create(h5py.h5s.SCALAR)
        return h5py.Dataset(h5py.h5d.create(file.id, b"element", kind, space, own))[()]


def attribute(value: Any) -> Json:  # noqa: ANN401
    """Return an attribute as JSON; raises `AbsentName` if it has no form in that.

    An array of one element is that element, as programs for netCDF have it.
    """
    if isinstance(value, h5py.Empty):
        return "" if value.dtype.kind in "SUO" else []
    if isinstance(value, str):
        return value.encode("utf-8", "surrogateescape").decode("utf-8", "replace")
    if isinstance(value, bytes):
        try:
            return value.decode()
        except UnicodeDecodeError:
            return value.decode("latin-1")
    if isinstance(value, h5py.Reference | h5py.RegionReference):
        raise AbsentName("it is a reference")
    if isinstance(value, np.ndarray):
        if value.shape == (1,):
            return attribute(value[0])
        if value.dtype.kind in "biu" or (value.dtype.kind == "f" and value.dtype.itemsize <= 8):
            return value.tolist()
        return [attribute(each) for each in value] if value.ndim else attribute(value[()])
    if isinstance(value, np.void) and value.dtype.names is not None:
        return {name: attribute(value[name]) for name in value.dtype.names}
    if isinstance(value, np.complexfloating):
        return [float(value.real), float(value.imag)]
    if isinstance(value, np.datetime64 | np.timedelta64):
        return str(value)
    if isinstance(value, np.floating):
        return float(value)
    if isinstance(value, np.bool_ | np.integer):
        return value.item()
    raise AbsentName(f"it is of the type {type(value).__name__}")


def _check(dtype: Any) -> None:  # noqa: ANN401
    """Raise `AbsentName` for a type of elements that has no form in Zarr."""
    if dtype.itemsize > MAX_ELEMENT_NBYTES:
        raise AbsentName(f"an element has {dtype.itemsize:,} bytes, more than {MAX_ELEMENT_NBYTES:,}")
    if dtype.names is not None:
        for name in dtype.names:
            _check(dtype[name])
    elif dtype.subdtype is not None:
        raise AbsentName("elements have fields that are arrays")
    elif dtype.kind == "O":
        raise AbsentName("elements vary in size, or are references")
    elif dtype.kind in "fc" and dtype.itemsize > (8 if dtype.kind == "f" else 16):
        raise AbsentName(f"elements are floats of {8 * dtype.itemsize // (1 + (dtype.kind == 'c'))} bits")
    elif dtype.kind not in "biufcSVMm" or not dtype.itemsize:
        raise AbsentName(f"elements are of the type {dtype.str}")


def _descr(dtype: Any) -> Json:  # noqa: ANN401
    if dtype.names is None:
        return dtype.str
    return [[name, _descr(dtype[name])] for name in dtype.names]


def _is_exact(kind: Any, dtype: Any) -> bool:  # noqa: ANN401
    """Whether elements of the type *kind* are stored as NumPy has them."""
    what = kind.get_class()
    if kind.get_size() != dtype.itemsize:
        return False
    if what == h5t.BITFIELD:  # of which h5py does not tell the precision
        bits = 8 * kind.get_size()
        return any(kind.equal(getattr(h5t, f"STD_B{bits}{order}")) for order in ("LE", "BE") if bits in _BITS)
    if what == h5t.INTEGER:
        is_whole = kind.get_precision() == 8 * kind.get_size() and kind.get_offset() == 0
        return bool(is_whole and kind.get_order() in (h5t.ORDER_LE, h5t.ORDER_BE))
    if what == h5t.ENUM:
        return _is_exact(kind.get_super(), dtype)
    if what == h5t.FLOAT:
        return any(kind.equal(getattr(h5t, f"IEEE_{name}")) for name in _FLOATS.get(kind.get_size(), ()))
    if what == h5t.COMPOUND:
        return _is_packed(kind, dtype)
    if what == h5t.STRING:  # of others, h5py leaves out blanks at the end, or what is behind a NUL
        padding = kind.get_strpad()
        return bool(padding == h5t.STR_NULLPAD or (padding == h5t.STR_NULLTERM and kind.get_size() == 1))
    return bool(what == h5t.OPAQUE)


def _is_packed(kind: Any, dtype: Any) -> bool:  # noqa: ANN401
    """Whether fields are one behind the other, and little-endian; or the two parts of a complex number."""
    members = [(kind.get_member_type(n), kind.get_member_offset(n)) for n in range(kind.get_nmembers())]
    is_complex = dtype.kind == "c"
    if is_complex:
        fields = [np.dtype(f"{dtype.byteorder}f{dtype.itemsize // 2}")] * 2
    else:
        fields = [dtype[name] for name in dtype.names]
    end = 0
    for (member, offset), field in zip(members, fields, strict=True):
        if offset != end or not (is_complex or field == field.newbyteorder("<")) or not _is_exact(member, field):
            return False
        end += field.itemsize
    return bool(end == dtype.itemsize)
