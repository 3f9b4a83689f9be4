#!/bin/sh
# Two jobs on a node with a simulated GPU, counted as on a cluster (40 s):
#
#   powerd sim-gpu -- sh examples/cluster.sh cluster
#   joules jobs cluster/nodes --by account --country DEU
set -e
examples=$(cd "$(dirname "$0")" && pwd)
slurm=$examples/../powerd/deploy/slurm
mkdir -p "${1:-cluster}"
cd "${1:-cluster}"
iterations=${2:-40}
url=tcp://127.0.0.1:${PORT:-7380}
printf '[server]\nlisten = "%s"\nblock_ms = 200\n\n[[source]]\nkind = "nvml"\n' $url > node.toml
export POWERD_SPOOL="$PWD/spool"
mkdir -p spool
powerd run --config node.toml &
powerd=$!
powerd-accounting $url --folder nodes/n1 --spool spool &
accounting=$!
trap 'kill $accounting; wait $accounting; kill $powerd; wait $powerd' EXIT
sleep 3

# What Slurm would do: its prolog, the job, its epilog.
job() {
    export SLURM_JOB_ID=$1 SLURM_JOB_USER=$2 SLURM_JOB_ACCOUNT=$3 SLURM_JOB_GPUS=0
    sh "$slurm/prolog.sh"
    python "$examples/sim_training.py" --iterations "$iterations" --network "$4"
    sh "$slurm/epilog.sh"
}
(job 1 ada vision resnet50)
(job 2 eve speech vgg19)
sleep 6
