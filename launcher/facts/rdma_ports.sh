#!/bin/sh
# To be sourced. `rdma_ports` prints a tab-separated row per RDMA port: `port`, device, number,
# state, link layer, rate, network interface. A row follows for each of its GIDs that is an IPv4
# address: `gid`, index, address in hex, type.
rdma_ports() {
  for p in /sys/class/infiniband/*/ports/*; do
    state='' layer='' rate='' nic=''
    { read -r state < "$p/state"; read -r layer < "$p/link_layer"; read -r rate < "$p/rate"; } 2>/dev/null
    { read -r nic < "$p/gid_attrs/ndevs/0"; } 2>/dev/null
    d=${p%/ports/*}
    printf 'port\t%s\t%s\t%s\t%s\t%s\t%s\n' "${d##*/}" "${p##*/}" "$state" "$layer" "$rate" "$nic"
    for g in "$p"/gids/*; do
      gid='' type=''
      { read -r gid < "$g"; } 2>/dev/null
      case $gid in 0000:0000:0000:0000:0000:ffff:*) ;; *) continue ;; esac
      i=${g##*/}
      { read -r type < "$p/gid_attrs/types/$i"; } 2>/dev/null
      printf 'gid\t%s\t%s\t%s\n' "$i" "${gid#0000:0000:0000:0000:0000:ffff:}" "$type"
    done
  done
}
