#!/bin/sh
# Boots a simulated host with Podman: what systemd does elsewhere, then as the hosts with Docker.
set -eu

umount -R /sys/fs/cgroup
mount -t cgroup2 none /sys/fs/cgroup # of this host alone, also where the machine has version 1
mount --make-rshared /
mkdir -p /run/sshd
install -d -m 700 -o ddp /run/user/1000
touch /run/dockerd.off
exec /boot.sh
