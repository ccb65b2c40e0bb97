#!/usr/bin/env bash
# A job that mounts a dataset, and ends the mount in time, even if the job is cancelled or runs out of time.
#SBATCH --time=01:00:00
#SBATCH --signal=B:TERM@300
# Only one mount at a time can write to a directory, on all nodes together; several can write to a bucket.
set -euo pipefail
: "${SOURCE:?is the dataset}"
mounted=${TMPDIR:-/tmp}/shardfs-${SLURM_JOB_ID:-$$}

mkdir -p "$mounted"
shardfs mount --quiet --write "$SOURCE" "$mounted"
# SIGTERM comes 300 s before the end. The program may still use the mount: with --force that does not matter.
trap 'shardfs umount --force "$mounted" && rmdir "$mounted"' EXIT
trap 'kill -TERM "$work" 2>/dev/null; exit 143' TERM INT

"$@" "$mounted" &
work=$!
wait "$work"
