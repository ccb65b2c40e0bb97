"""The views by the names that users know them by."""

from shardfs.errors import UsageError
from shardfs.stores.base import Store
from shardfs.vfs.npy_view import NpyView
from shardfs.vfs.v2_view import ZarrV2
from shardfs.vfs.v3_view import ZarrV3
from shardfs.vfs.views import EditableView, View


def make_view(
    name: str, store: Store, *, decoded: bool = False, separator: str | None = None, fills_missing: bool = True
) -> View:
    """Return the view *name* of *store*: "v3", "v2" or "npy".

    *decoded*: chunks are decoded; *separator* joins the chunk keys of v2, "." if it is None; if not *fills_missing*, v2
    shows the stored fill values, and no file for what is not stored.
    """
    if name == "npy":
        return NpyView(store.url)
    return make_editable_view(name, decoded=decoded, separator=separator, fills_missing=fills_missing)


def make_editable_view(
    name: str, *, decoded: bool = False, separator: str | None = None, fills_missing: bool = True
) -> EditableView:
    """Return the view "v3" or "v2", through which a dataset may be changed."""
    match name:
        case "v3":
            return ZarrV3(decoded=decoded)
        case "v2":
            return ZarrV2(separator or ".", decoded=decoded, fills_missing=fills_missing)
        case _:
            raise UsageError(f"there is no view {name!r} that can be written to")
