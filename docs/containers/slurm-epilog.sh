#!/usr/bin/env bash
# An epilog for nodes that are not shared between jobs of one user: ends what the jobs of the user left mounted, and
# commits what they wrote. Name it as Epilog= in slurm.conf, with an EpilogMsgTime that leaves room for a commit.
# Exit status 0 whatever happens: another one would drain the node. What cannot be committed stays in the journal.
: "${SLURM_JOB_USER:?is set by Slurm}"
runuser --user "$SLURM_JOB_USER" -- /opt/shardfs/bin/shardfs umount --all --force --timeout 120 2>&1 | logger --tag shardfs-epilog
exit 0
