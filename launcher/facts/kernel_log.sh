#!/bin/sh
# Prints NVIDIA's GPUs as `gpu UUID, PCI`, the uptime, and what the kernel has logged about GPUs and
# memory. Each line begins with seconds of uptime in brackets.
PATH=$PATH:/usr/local/sbin:/usr/sbin:/sbin; export PATH LC_ALL=C
command -v nvidia-smi >/dev/null 2>&1 &&
  timeout 20 nvidia-smi --query-gpu=uuid,pci.bus_id --format=csv,noheader 2>/dev/null | sed 's/^/gpu /'
read -r up _ < /proc/uptime && echo "uptime $up"
{ dmesg || timeout 5 journalctl -kb -q --no-pager -n 10000 -o short-monotonic; } 2>/dev/null |
  grep -E 'NVRM: Xid|[Oo]ut of memory|oom-kill' | tail -n 64
