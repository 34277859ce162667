#!/bin/sh
# Prints each NVIDIA GPU as `gpu UUID, PCI`, its state as `load VALUES` (the fields $1), the uptime,
# and the kernel's messages about GPUs and memory. Each message begins with the uptime at which it was
# logged, in brackets.
PATH=$PATH:/usr/local/sbin:/usr/sbin:/sbin; export PATH LC_ALL=C
ask() { timeout 10 nvidia-smi --query-gpu="$1" --format=csv,noheader,nounits 2>/dev/null; }
if command -v nvidia-smi >/dev/null 2>&1; then
  ask uuid,pci.bus_id | sed 's/^/gpu /'
  ask "$1" | sed 's/^/load /'
fi
read -r up _ < /proc/uptime && echo "uptime $up"
{ dmesg || timeout 5 journalctl -kb -q --no-pager -n 10000 -o short-monotonic; } 2>/dev/null |
  grep -E 'NVRM: Xid|[Oo]ut of memory|oom-kill' | tail -n 64
