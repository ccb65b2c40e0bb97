"""`python -m shardfs` is the command `shardfs`."""

from shardfs.cli import main

main()
