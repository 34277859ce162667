#!/bin/sh
# Connects standard input and output to the engine's API. Starts Podman's API service if necessary.
. ./find_engine.sh
[ "$engine" = podman ] || exec docker system dial-stdio
run=/run/podman
if [ "$(id -u)" != 0 ]; then
  run=${XDG_RUNTIME_DIR:-/run/user/$(id -u)}
  [ -w "$run" ] || { echo "no runtime directory $run" >&2; exit 1; }
fi
mkdir -p "$run"; sock=$run/ddpctl.sock; lock=$run/ddpctl.lock
flock -n "$lock" rm -f "$sock"
setsid flock -no "$lock" podman system service --time=300 "unix://$sock" \
  </dev/null >/dev/null 2>&1 &
for _ in $(seq 100); do
  [ -S "$sock" ] && exec podman --url "unix://$sock" system dial-stdio
  sleep 0.1
done
echo "podman system service did not start: $(podman info 2>&1 >/dev/null | tail -n 1)" >&2
exit 1
