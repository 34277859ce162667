#!/bin/sh
# Boots a simulated host with Podman: does what systemd does elsewhere, then boots like a host with Docker.
set -eu

umount -R /sys/fs/cgroup
mount -t cgroup2 none /sys/fs/cgroup # for this host alone, even if the machine has version 1
mount --make-rshared /
mkdir -p /run/sshd
install -d -m 700 -o ddp /run/user/1000
touch /run/dockerd.off
exec /boot.sh
