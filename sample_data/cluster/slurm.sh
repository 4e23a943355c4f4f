#!/bin/bash
# Practise on the nodes of a Slurm job: sbatch sample_data/cluster/slurm.sh
#
# Every node needs the same studio, with its extra `ray`, in the environment that is activated here.
# `ray symmetric-run` starts Ray on all nodes, runs the command on the first, then stops Ray.
#SBATCH --job-name=practice
#SBATCH --nodes=4
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task=16
#SBATCH --time=08:00:00

set -eu
. .venv/bin/activate
head=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)

# A token of Ray that all nodes share keeps others of the cluster out.
umask 077
ray get-auth-token --generate >/dev/null
export RAY_AUTH_MODE=token

# Models are asked from the first node: base_url must lead from there to their servers.
srun ray symmetric-run --address "$head:6379" --min-nodes "$SLURM_JOB_NUM_NODES" \
  --num-cpus "$SLURM_CPUS_PER_TASK" -- \
  studio headless "${1:-sample_data/cluster/cluster.yaml}" "ray.address=$head:6379" \
  practice.concurrency=512
