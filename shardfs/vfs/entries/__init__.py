"""The kinds of files and directories: each knows how to look itself up, read, create, replace and remove itself."""
