"""The folders of one node of a run on its host: made, filled and read by one `sh` script each."""

from __future__ import annotations

import functools
import io
import json
import shlex
import tarfile
from collections.abc import Mapping
from typing import Any

from launcher.errors import CommandFailed
from launcher.launch import supervisor_bundle
from launcher.plan.plan import NodePlan, Plan
from launcher.plan.supervisor_spec import BUNDLE
from launcher.ssh.node import Node

# $1 run folder, $2 control folder, $3 code to copy or "", $4 "open" when another user must write
SCRIPT = r"""
set -e
run=$1 control=$2 code=$3 open=$4
umask 077
mkdir -p "$control/ranks"
umask 022
mkdir -p "$run/checkpoints" "$run/output" ${code:+"$run/workspace"}
if [ -n "$code" ] && mkdir "$control/../../.workspace-${control##*/}" 2>/dev/null; then
  cp -a "$code/." "$run/workspace/"
  chmod -R u+w "$run/workspace"
fi
tar -x -m -o -f - -C "$control"
: >> "$control/journal"
if [ -e "$control/cancelled" ]; then rm -f "$control/cancelled"; fi
if [ "$open" = open ]; then
  chmod 0777 "$run/checkpoints" "$run/output" "$control" "$control/ranks"
  chmod 0666 "$control/journal"
  chmod 0644 "$control/spec.json" "$control/supervisor.pyz"
  if [ -d "$run/workspace" ]; then chmod -R a+rwX "$run/workspace"; fi
fi
"""


def prepare(
    node: Node, plan: Plan, node_plan: NodePlan, documents: Mapping[str, Any], uid: int
) -> None:
    """Makes the folders that the containers mount. `uid` is the SSH user's on that host.

    documents: file name -> what to write as JSON into the node's control folder.

    Raises CommandFailed: no room, no permission, the pushed code is gone.
    """
    place = node_plan.place
    code = ""
    if plan.workdir_digest:
        home = place.run_dir.rsplit("/runs/", 1)[0]
        code = f"{home}/workdirs/{plan.workdir_digest}"
    user = node_plan.container.user.split(":")[0]
    foreign = plan.engine == "docker" and user not in (str(uid), "0")
    done = node.script(
        SCRIPT,
        place.run_dir,
        place.control_dir,
        code,
        "open" if foreign else "",
        stdin=_control_files(documents),
        timeout=120.0,
    )
    if done.code != 0:
        said = done.stderr.decode(errors="replace").strip().splitlines() or [f"exit {done.code}"]
        raise CommandFailed(
            f"{node.name}: could not make {place.run_dir}: {said[-1]}; "
            f"look at `df -h` and the permissions of {shlex.quote(place.run_dir)} there"
        )


_supervisor = functools.cache(supervisor_bundle.supervisor_file)  # the same for all nodes


def _control_files(documents: Mapping[str, Any]) -> bytes:
    files = {name: json.dumps(document).encode() for name, document in documents.items()}
    files[BUNDLE] = _supervisor()
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        for name, content in files.items():
            entry = tarfile.TarInfo(name)
            entry.size, entry.mode = len(content), 0o600
            tar.addfile(entry, io.BytesIO(content))
    return buffer.getvalue()
