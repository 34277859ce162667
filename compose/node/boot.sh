#!/bin/sh
# Boots a simulated host: keys from /keys, sshd on ports 22 and 2222, dockerd in its own cgroup.
set -eu

for home in /root /home/ddp; do
    install -m 600 -o "$(stat -c %u "$home")" /keys/authorized_keys "$home/.ssh/authorized_keys"
done
install -m 600 /keys/ssh_host_ed25519_key /etc/ssh/ssh_host_ed25519_key
ssh-keygen -y -f /etc/ssh/ssh_host_ed25519_key >/etc/ssh/ssh_host_ed25519_key.pub
/usr/sbin/sshd -p 22 -p 2222 -o UseDNS=no -o PasswordAuthentication=no -E /var/log/sshd.log

start_dockerd() {
    # pid files left behind by a killed daemon would keep the next one from starting
    rm -f /var/run/docker.pid /var/run/docker/containerd/containerd.pid
    dockerd --storage-driver overlay2 --bridge=none --iptables=false \
        --cgroup-parent="/${CGROUP_PARENT:-$(hostname)}" >>/var/log/dockerd.log 2>&1 &
    dockerd=$!
}

# PID 1 keeps the host up while dockerd comes and goes: it stays off while /run/dockerd.off exists
dockerd=
while :; do
    if [ ! -e /run/dockerd.off ] && ! kill -0 "$dockerd" 2>/dev/null; then start_dockerd; fi
    sleep 0.5
done
