"""Fill the folders of a node on its host."""

import io
import shlex
import zipfile
from collections.abc import Mapping
from pathlib import Path

from ..errors import CommandFailed
from ..plan.container import IN_CONTAINER, fixed_uid
from ..plan.plan import NodePlan, Plan
from ..push.files.tar import archive, small_file
from ..ssh.host_connection import HostConnection
from ..ssh.script_files import load_script

SUPERVISOR = Path(__file__).parents[1] / "supervisor"
# Before Python runs a module from a zip, it asks for the module's path, and `zipimporter` compiles the
# module to find that out, only to compile it again. Every node would wait for that.
MAIN = """\
import sys
import zipimport

class Importer(zipimport.zipimporter):
    def get_filename(self, name):
        path = self.archive + "/" + self.prefix + name.rpartition(".")[2]
        return path + ("/__init__.py" if self.is_package(name) else ".py")

sys.path_hooks.insert(0, Importer)
sys.path_importer_cache.clear()
from supervisor.main import main
sys.exit(main())
"""
PREPARE = load_script(__file__, "prepare_node.sh")
GONE = 17  # exit code of PREPARE if a pushed tree is missing


def fill_folders(
    connection: HostConnection, plan: Plan, node_plan: NodePlan, files: Mapping[str, bytes]
) -> None:
    """Create and fill the folders that the node uses on its host.

    files: the files of the node's control folder, by name. Raises CommandFailed if a folder cannot be
    created, or if the pushed code or dataset is gone.
    """
    place = node_plan.place
    control_files = archive(small_file(name, data, 0o600) for name, data in files.items())
    on_host = {mount.target: mount.source for mount in node_plan.container.mounts}
    done = connection.script(
        PREPARE,
        place.run_dir,
        place.control_dir,
        plan.workdir_digest or "",
        fixed_uid(plan),
        on_host[IN_CONTAINER.cache] if plan.engine.in_container else "",
        plan.dataset_digest or "",
        stdin=b"".join(control_files),
        timeout=120.0,
    )
    if done.code == GONE:
        what = "another command has removed the pushed code or dataset in the meantime"
        raise CommandFailed(what, "start the run again", host=connection.name)
    remedy = (
        "check the free space (`df -h`) and the permissions of "
        f"{shlex.quote(place.run_dir)} on that host"
    )
    done.expect(f"could not create {place.run_dir}", remedy, connection.name)


def supervisor_file() -> bytes:
    """Return the supervisor as one zip file. Hosts run it with `python3 -I -S supervisor.pyz`.

    The same sources give the same bytes.
    """
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as bundle:
        bundle.writestr(zipfile.ZipInfo("__main__.py"), MAIN)
        for path in sorted([*SUPERVISOR.glob("*.py"), *SUPERVISOR.glob("*.txt")]):
            entry = zipfile.ZipInfo(f"supervisor/{path.name}")
            bundle.writestr(entry, path.read_bytes(), zipfile.ZIP_DEFLATED)
    return buffer.getvalue()
