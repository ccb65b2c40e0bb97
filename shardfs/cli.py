"""tmp."""
import sys, logging
from shardfs.fuse.mount import *
def main():
    logging.basicConfig(level="INFO")
    store=LocalStore(sys.argv[2]); path=check_mount_point(sys.argv[3], store)
    serve(store, path, MountOptions(), lambda: print("ready", flush=True))
