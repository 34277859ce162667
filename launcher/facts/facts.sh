#!/bin/sh
# Prints facts about this host in sections, each of which begins with a line `@@NAME`.
# Arguments: [gpus] [check DOCKER_ROOT MASTER_PORT FOLDER...], in this order.
# `gpus` runs nvidia-smi, which can take seconds. `check` adds what only `ddpctl check` needs;
# DOCKER_ROOT and MASTER_PORT may be empty.
# Needs only a shell, coreutils and grep. Values that the host cannot report stay empty. The shell itself
# does as much as possible, because starting processes is slow on a small host.
. ./amd_gpus.sh
. ./rdma_ports.sh
. ./gpu_owners.sh
PATH=$PATH:/usr/local/sbin:/usr/sbin:/sbin; export PATH LC_ALL=C
unset OMP_NUM_THREADS OMP_THREAD_LIMIT # nproc would print them instead of the cores
s() { printf '\n@@%s\n' "$1"; }
check() {
  root=$1; port=$2; shift 2
  s writable
  t="$HOME/.ddpctl/.check.$$"
  if [ -d "$HOME/.ddpctl" ] || mkdir -p -m 700 "$HOME/.ddpctl" 2>&1; then
    { true > "$t"; } 2>&1 && rm -f "$t" && echo yes
  fi
  s disk
  for d in "$HOME/.ddpctl" "$HOME" "$root" /dev/shm; do
    if [ -n "$d" ] && [ -e "$d" ]; then
      printf 'path %s\n' "$d"; df -Pk "$d" 2>/dev/null && df -Pi "$d" 2>/dev/null
    fi
  done
  s memory; { read -r total; read -r _; read -r available; } < /proc/meminfo
  printf '%s\n' "$total" "$available"
  s memlock
  # shellcheck disable=SC3045 # not in POSIX, but in every Linux shell
  ulimit -l
  # shellcheck disable=SC3045 # likewise
  s nofile && ulimit -Hn
  s resolved; read -r name < /proc/sys/kernel/hostname; getent ahostsv4 "$name" 2>/dev/null
  s subuids; { grep -e "^$(id -un):" -e "^$(id -u):" /etc/subuid || getsubids "$(id -un)"; } 2>/dev/null
  s logout
  [ -d /run/systemd/system ] && [ ! -e "/var/lib/systemd/linger/$(id -un)" ] && echo "ends all"
  s firewall; for f in ufw firewalld; do [ -e "/usr/sbin/$f" ] && echo "$f"; done
  s holder
  if [ -n "$port" ]; then
    hex=$(printf '%04X' "$port")
    cat /proc/net/tcp /proc/net/tcp6 2>/dev/null | while read -r _ local _ st _ _ _ uid _ inode _; do
      if [ "$st" = 0A ] && [ "${local##*:}" = "$hex" ]; then
        user=$(id -nu "$uid" 2>/dev/null || echo "$uid")
        pid=$(ls -l /proc/[0-9]*/fd 2>/dev/null | while read -r line; do
          case $line in
            /proc/*:) p=${line#/proc/}; p=${p%%/*} ;;
            *"socket:[$inode]"*) echo "$p"; break ;;
          esac
        done)
        printf '%s\t%s\t' "$user" "$pid"
        [ -n "$pid" ] && tr '\0' ' ' < "/proc/$pid/cmdline" 2>/dev/null
        echo
        break
      fi
    done
  fi
  s missing; for d; do [ -e "$d" ] || printf '%s\n' "$d"; done
  if [ -n "$gpus" ]; then
    s driver; cat /proc/driver/nvidia/version 2>/dev/null
    s nvswitch; ls -d /dev/nvidia-nvswitch[0-9]* 2>/dev/null
    s fabricmanager # unknown if /proc hides other users' processes
    cat /proc/[0-9]*/comm 2>/dev/null | grep nv-fabricmanage || [ -r /proc/1/comm ] || echo unknown
    s toolkit
    for c in nvidia-container-runtime-hook nvidia-container-runtime nvidia-ctk; do command -v "$c"; done
    s cdi
    # shellcheck disable=SC2010 # either of the two folders may be missing
    ls /etc/cdi /var/run/cdi 2>/dev/null | grep -i nvidia
    s nvidia
    xml=$(command -v nvidia-smi >/dev/null 2>&1 && timeout 20 nvidia-smi -q -x 2>/dev/null)
    printf '%s\n' "$xml"
    s links; timeout 20 nvidia-smi topo -m 2>/dev/null
    s p2p; timeout 20 nvidia-smi topo -p2p r 2>/dev/null
    s xgmi; cat /sys/class/kfd/kfd/topology/nodes/*/io_links/*/properties 2>/dev/null | grep -m1 '^type 11$'
    s peermem; ls -d /sys/module/nvidia_peermem /sys/module/nv_peer_mem 2>/dev/null
    s acs; lspci -vv 2>/dev/null | grep -m1 'ACSCtl:.*ReqRedir+' # root only
    s xid  # from the first log that this user may read
    { dmesg || timeout 5 journalctl -kb -q --no-pager -n 10000; } 2>/dev/null | grep 'NVRM: Xid' | tail -n 64
    s gpuowners
    # shellcheck disable=SC2046 # one argument per pid
    gpu_owners $(printf '%s\n' "$xml" | sed -n 's:.*<pid>\([0-9]*\)</pid>.*:\1:p')
  fi
}
s clock; date +%s.%N
s user; id
s home; printf '%s\n' "$HOME"
s folder; readlink -f "$HOME/.ddpctl" 2>/dev/null
s system; uname -nsrm
s ssh; printf '%s\n' "$SSH_CONNECTION"
s boot; read -r boot < /proc/sys/kernel/random/boot_id && echo "$boot"
s cores; nproc 2>/dev/null || grep -c '^processor' /proc/cpuinfo
s net; { cat /proc/net/route /proc/net/fib_trie /proc/net/if_inet6; ip -o -4 addr; } 2>/dev/null
s interfaces
for d in /sys/class/net/*; do
  mtu='' state='' speed=''
  { read -r mtu < "$d/mtu"; read -r state < "$d/operstate"; read -r speed < "$d/speed"; } 2>/dev/null
  kind=plain
  if [ -d "$d/bridge" ]; then
    kind=bridge
  elif [ -e "$d/device" ] && [ ! -d "$d/wireless" ]; then
    read -r type < "$d/type" 2>/dev/null && [ "$type" = 1 ] && kind=ethernet
    for upper in "$d"/upper_*; do [ -e "$upper" ] && kind=plain; done # in a bond, or has a VLAN
  fi
  printf '%s %s %s %s %s\n' "${d##*/}" "$mtu" "$state" "${speed:--1}" "$kind"
done
s network; readlink /proc/self/ns/net
s listening; grep -h ' 0A ' /proc/net/tcp /proc/net/tcp6 2>/dev/null
s rdma; [ -d /sys/class/infiniband ] && rdma_ports
s infiniband; [ -d /dev/infiniband ] && ls /dev/infiniband
gpus=
while [ $# -gt 0 ]; do
  case $1 in
    gpus)
      gpus=yes; s gpus
      if command -v nvidia-smi >/dev/null 2>&1; then
        nvidia-smi --query-gpu=index,uuid,name,memory.total,pci.bus_id --format=csv,noheader,nounits 2>&1
      fi
      s amd; amd_gpus
      s pci; for d in /sys/bus/pci/drivers/nvidia/*:* /sys/bus/pci/drivers/amdgpu/*:*; do
        cpus='' iommu=''
        { read -r cpus < "$d/local_cpulist"; read -r iommu < "$d/iommu_group/type"; } 2>/dev/null
        [ -z "$cpus" ] || printf '%s\t%s\t%s\n' "${d##*/}" "$cpus" "$iommu"
      done
      s cpus; cat /sys/devices/system/cpu/online 2>/dev/null
      s gpugroups; stat -c %g /dev/kfd /dev/dri/renderD* /dev/dri/card* 2>/dev/null ;;
    check) shift; check "$@"; break ;;
  esac
  shift
done
s end; date +%s.%N
