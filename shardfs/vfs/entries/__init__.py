"""The files and directories of the tree: each kind knows how it is looked up, read, made, replaced and removed."""
