#!/bin/sh
# Epilog= of slurm.conf: tells powerd-accounting that a job has ended on this node. See prolog.sh.
exec env POWERD_EVENT=end sh "$(dirname "$0")/prolog.sh"
