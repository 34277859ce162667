#!/bin/sh
# Fills /keys once: the key that may log in, the host key of all simulated hosts, and known_hosts.
set -eu

cd /keys
[ ! -e known_hosts ] || exit 0
for name in id_ed25519 ssh_host_ed25519_key; do
    [ -e "$name" ] || ssh-keygen -q -t ed25519 -N '' -C "$name" -f "$name"
done
cp id_ed25519.pub authorized_keys
echo "node0,node1,node2 $(cut -d' ' -f1,2 ssh_host_ed25519_key.pub)" >known_hosts
