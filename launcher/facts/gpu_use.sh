#!/bin/sh
# Prints the boot id (`boot, ...`), a row per NVIDIA GPU (`gpu, ...`) and per process on a GPU
# (`app, ...`), and the rows of gpu_owners for these processes.
. ./gpu_owners.sh
PATH=$PATH:/usr/local/sbin:/usr/sbin:/sbin; export PATH LC_ALL=C
ask() { timeout 20 nvidia-smi "$@" --format=csv,noheader,nounits 2>/dev/null; }
sed 's/^/boot, /' /proc/sys/kernel/random/boot_id
ask --query-gpu=index,uuid,utilization.gpu,memory.used,memory.total,name | sed 's/^/gpu, /'
apps=$(ask --query-compute-apps=gpu_uuid,pid,used_memory)
printf '%s\n' "$apps" | sed 's/^/app, /'
# shellcheck disable=SC2046 # one argument per pid
gpu_owners $(printf '%s\n' "$apps" | cut -d , -f 2)
