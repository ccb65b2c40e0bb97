"""How Sphinx builds the pages in this directory: `sphinx-build -n -W docs site`."""

import shardfs

project = "shardfs"
author = "the shardfs developers"
version = release = shardfs.__version__
extensions = ["myst_parser", "sphinx.ext.autodoc"]
highlight_language = "text"  # of blocks that name none
html_theme = "furo"
html_title = f"shardfs {version}"

myst_heading_anchors = 4  # links name headings as GitHub does
default_role = "code"  # docstrings have single backticks
autodoc_typehints_format = "short"
autodoc_member_order = "bysource"
# Names of other libraries would have to be looked up in the network.
_KNOWN_BY_NAME = r"shardfs\.(api\.(opened|zarr_store|mount)|dataset|stores|vfs\.paths)\..*"
nitpick_ignore_regex = [("py:.*", rf"(?!shardfs).*|{_KNOWN_BY_NAME}")]
