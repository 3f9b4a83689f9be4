#!/bin/sh
# Prolog= of slurm.conf: tells powerd-accounting that a job begins on this node, by a file with what Slurm says of it.
# epilog.sh calls it with POWERD_EVENT=end. A job is never refused or delayed for it: the status is always 0.
spool=${POWERD_SPOOL:-/var/spool/powerd}
umask 022
# `env -0` needs no quoting whatever a user called the job: NAME=VALUE, each ended by a zero byte, as in /proc/PID/environ.
name=$(date +%s%N).${SLURM_JOB_ID:-0}.${POWERD_EVENT:-begin}
if mkdir -p "$spool" && env -0 | grep -z '^SLURM_' >"$spool/.$name"; then
    mv "$spool/.$name" "$spool/$name"
fi
# powerd-accounting only reads here. What it has not read within a week, nobody asks for.
find "$spool" -maxdepth 1 -type f \( -name '*.begin' -o -name '*.end' \) -mtime +7 -delete
exit 0
