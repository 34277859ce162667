"""`fetch` on fake hosts."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest
from fakes import FakeCluster

from launcher import budget
from launcher.look import fetch

Make = Callable[..., FakeCluster]


def test_a_run_without_files_is_told_where_to_write_them(fake_cluster: Make) -> None:
    cluster = fake_cluster()
    cluster.nodes_end(exit_code=0)
    assert cluster.launch()[0] == 0
    code, _, err = cluster.ddpctl("fetch")
    assert code == 0, err
    where = "must save to $DDPCTL_CHECKPOINT_DIR or $DDPCTL_OUTPUT_DIR; `ddpctl clean` removes"
    assert where in err
    [output] = cluster.hosts["gpu0"].home.glob(".ddpctl/runs/*/output")
    (output / "results.txt").touch()
    for _ in range(2):  # fetched, then already here
        code, _, err = cluster.ddpctl("fetch")
        assert (code, where in err) == (0, False), err


# Like find, but looks at each path for half a second before it tests whether the user may read it.
SLOW_FIND = r"""#!/bin/sh
case $* in *-readable*) ;; *) exec /usr/bin/find "$@" ;; esac
for word in "$@"; do
  shift
  case $word in !) [ "$slow" ] || set -- "$@" -exec sleep 0.5 ';'; slow=yes ;; esac
  set -- "$@" "$word"
done
exec /usr/bin/find "$@"
"""


def outputs(cluster: FakeCluster) -> tuple[Path, Path]:
    """The output folders of a finished run on gpu0 and gpu1; each has a file of its own."""
    cluster.nodes_end(exit_code=0)
    assert cluster.launch()[0] == 0
    folders = [next(host.home.glob(".ddpctl/runs/*/output")) for host in cluster]
    for number, folder in enumerate(folders):
        (folder / f"of-{number}").write_text("x")
    return folders[0], folders[1]


@pytest.mark.parametrize("sent", ["cat /dev/zero", "printf short", "printf 'as long'", "exit 1"])
def test_a_host_that_sends_something_else_than_it_listed_stops_no_other(
    fake_cluster: Make, sent: str
) -> None:
    cluster = fake_cluster()
    odd, _ = outputs(cluster)
    (odd / "large").write_text("as-long")
    cluster.hosts["gpu0"].install(
        "tail", f'#!/bin/sh\ncase $* in *large*) {sent} ;; *) exec /usr/bin/tail "$@" ;; esac\n'
    )
    code, _, err = cluster.ddpctl("fetch", "--to", "got")
    assert (code, err.count("gpu0")) == (1, 1), err
    assert "output/large changed while it was being fetched" in err
    got = sorted(path.name for path in Path("got", "output").iterdir())
    assert got == ["of-0", "of-1"]
    assert Path("got", "logs", "node-1.log").exists()


@pytest.mark.parametrize("tool", ["sha256sum", "tail"])
def test_of_a_file_that_grows_meanwhile_what_was_there_is_fetched(
    fake_cluster: Make, tool: str
) -> None:
    """As metrics.jsonl of a live run: after its size was listed, or after its hash was."""
    cluster = fake_cluster()
    output, _ = outputs(cluster)
    (output / "metrics.jsonl").write_text("first\n")
    grow = f"case $* in *metrics*) echo more >> '{output}/metrics.jsonl' ;; esac"
    cluster.hosts["gpu0"].install(tool, f'#!/bin/sh\n{grow}\nexec /usr/bin/{tool} "$@"\n')
    code, _, err = cluster.ddpctl("fetch", "--to", "got")
    assert code == 0, err
    got = Path("got", "output", "metrics.jsonl").read_text()
    assert got.startswith("first\n") and got.endswith("\n")
    assert (output / "metrics.jsonl").read_text().startswith(got)


@pytest.mark.parametrize(
    "answer", ["no list at all", "not a row\\0", "4 ../../x\\0", "4 output/x\\0\\0half a"]
)
def test_a_host_whose_list_of_files_is_nonsense_is_one_warning(
    fake_cluster: Make, answer: str
) -> None:
    cluster = fake_cluster()
    outputs(cluster)
    cluster.hosts["gpu0"].install("find", f"#!/bin/sh\nprintf '{answer}'\n")
    code, _, err = cluster.ddpctl("fetch", "--to", "got")
    assert (code, err.count("gpu0:")) == (4, 1), err
    assert "gpu0: its answer is not a list of the run's files" in err
    assert [path.name for path in Path("got", "output").iterdir()] == ["of-1"]


@pytest.mark.slow
@pytest.mark.parametrize(("longest", "code"), [(7200.0, 0), (1.0, 4)])
def test_large_files_may_take_long_to_hash_but_not_as_long_as_a_host_likes(
    longest: float, code: int, fake_cluster: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = fake_cluster()
    (outputs(cluster)[0] / "large").write_bytes(bytes(1000))
    monkeypatch.setattr(budget, "LEAST_HASH", 2.0)
    monkeypatch.setattr(budget, "SLOWEST_HASH", 10)
    monkeypatch.setattr(budget, "LONGEST_HASH", longest)
    cluster.hosts["gpu0"].install("sha256sum", '#!/bin/sh\nsleep 3; exec /usr/bin/sha256sum "$@"\n')
    ended, _, err = cluster.ddpctl("fetch", "--to", "got")
    assert ended == code, err


def test_a_file_that_the_user_may_not_read_is_an_error(fake_cluster: Make) -> None:
    """As a script under `user: root` may write it. The tests run as root, who may read everything."""
    cluster = fake_cluster()
    outputs(cluster)
    unreadable = "*-readable*) printf -- '- output/of-0\\0'"
    for tool, case in (("find", unreadable), ("sha256sum", "*) exit 1")):
        script = f'#!/bin/sh\ncase $* in {case} ;; *) exec /usr/bin/{tool} "$@" ;; esac\n'
        cluster.hosts["gpu0"].install(tool, script)
    code, _, err = cluster.ddpctl("fetch", "--to", "got")
    assert code == 1 and "gpu0: you may not read output/of-0, so it was not fetched" in err, err
    assert [path.name for path in Path("got", "output").iterdir()] == ["of-1"]


@pytest.mark.slow
def test_a_host_may_take_long_to_look_for_files_that_its_user_may_not_read(
    fake_cluster: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On NFS, find asks the server about each file."""
    cluster = fake_cluster()
    output, _ = outputs(cluster)
    for number in range(8):
        (output / f"many-{number}").touch()
    cluster.hosts["gpu0"].install("find", SLOW_FIND)
    monkeypatch.setattr(fetch, "SILENCE", 2.0)
    code, _, err = cluster.ddpctl("fetch", "--to", "got")
    assert code == 0, err


def test_a_host_whose_checkpoints_the_user_may_not_read_lists_the_folder(
    fake_cluster: Make,
) -> None:
    cluster = fake_cluster()
    outputs(cluster)
    unreadable = "*-readable*) printf -- '- checkpoints\\0'"
    cluster.hosts["gpu0"].install(
        "find", f'#!/bin/sh\ncase $* in {unreadable} ;; *) exec /usr/bin/find "$@" ;; esac\n'
    )
    code, _, err = cluster.ddpctl("fetch", "--to", "got")
    assert code == 1 and "gpu0: you may not read checkpoints, so it was not fetched" in err, err
    assert {path.name for path in Path("got", "output").iterdir()} == {"of-0", "of-1"}


def test_a_host_lists_what_its_user_may_not_read() -> None:
    with tempfile.TemporaryDirectory() as made:
        run, nobody = Path(made), 65534 if os.geteuid() == 0 else os.geteuid()
        run.chmod(0o755)
        (run / "output" / "closed").mkdir(parents=True)
        (run / "output" / "secret").touch()
        (run / "output" / "link").symlink_to("secret")
        os.mkfifo(run / "output" / "fifo")  # never fetched, like a socket
        for path in (run / "output" / each for each in ("closed", "secret", "fifo")):
            path.chmod(0)
        argv = ["sh", "-c", fetch.LIST, "sh", made, "hashes"]
        rows = subprocess.run(argv, user=nobody, stdout=subprocess.PIPE, check=False).stdout
        (run / "output" / "closed").chmod(0o755)
    unreadable = [b"- output/closed", b"- output/secret"]
    assert sorted(filter(None, rows.split(b"\0"))) == [*unreadable, b"> output/link//secret"]


def test_what_is_kept_about_failures_is_fetched_with_the_logs(fake_cluster: Make) -> None:
    cluster = fake_cluster()
    outputs(cluster)
    [logs] = cluster.state.glob("ddpctl/runs/*/logs")
    (logs / "failure-attempt-1.txt").write_text("an Xid")
    code, _, err = cluster.ddpctl("fetch", "--to", "got")
    assert code == 0, err
    assert Path("got", "logs", "failure-attempt-1.txt").read_text() == "an Xid"


def test_a_file_in_the_place_of_a_folder_and_a_long_name_stop_no_other(fake_cluster: Make) -> None:
    cluster = fake_cluster()
    one, other = outputs(cluster)
    (one / "same").write_text("a file")
    (one / ("n" * 255)).write_text("as long as a name can be")
    (other / "same").mkdir()
    (other / "same" / "inside").touch()
    code, _, err = cluster.ddpctl("fetch", "--to", "got")
    assert code == 1 and "output/same/inside cannot be written" in err, err
    assert {"of-0", "of-1", "same", "n" * 255} == {p.name for p in Path("got", "output").iterdir()}


@pytest.mark.parametrize(
    "path",
    ["a/" * 1500 + "x", "a/" * 3000 + "x", "n" * 300, "of-0/x"],
    ids=["deep", "too deep", "long", "below a file"],
)
def test_a_path_that_this_machine_cannot_hold_stops_no_other(fake_cluster: Make, path: str) -> None:
    """A host may list any path. pathlib would make 1,500 folders by recursion."""
    cluster = fake_cluster()
    outputs(cluster)
    for tool, row in (("find", f"1 output/{path}"), ("sha256sum", f"{'0' * 64}  output/{path}")):
        also = f"case $* in *%s*|-z*) printf '{row}\\0' ;; esac"
        cluster.hosts["gpu0"].install(tool, f'#!/bin/sh\n{also}\nexec /usr/bin/{tool} "$@"\n')
    code, _, err = cluster.ddpctl("fetch", "--to", "got")
    assert code == 1 and err.count("gpu0: output/") == 1, err
    assert {"of-0", "of-1"} <= {path.name for path in Path("got", "output").iterdir()}
    subprocess.run(["rm", "-r", "got"], check=True)  # it may be too deep for pytest to remove


def test_nothing_is_fetched_through_a_link_of_this_machine(fake_cluster: Make) -> None:
    cluster = fake_cluster()
    folder, _ = outputs(cluster)
    (folder / "cache").mkdir()
    (folder / "cache" / "profile").write_text("evil")
    (folder / "cache" / "deep").mkdir()
    (folder / "cache" / "deep" / "profile").write_text("evil")
    mine = Path("mine")
    mine.mkdir()
    Path("got", "output").mkdir(parents=True)
    Path("got", "output", "cache").symlink_to(mine.absolute())
    (mine / "notes").write_text("notes")
    digest = hashlib.sha256(b"x").hexdigest()
    Path("got", "output", f".{digest[:24]}.part").symlink_to((mine / "notes").absolute())
    code, _, err = cluster.ddpctl("fetch", "--to", "got")
    assert code == 1 and "cannot be written" in err, err
    assert [(path.name, path.read_text()) for path in mine.iterdir()] == [("notes", "notes")]


def test_links_are_fetched_as_links_that_stay_in_the_folder(fake_cluster: Make) -> None:
    """As Lightning's last.ckpt is. A link that leads elsewhere is one line."""
    cluster = fake_cluster()
    output, _ = outputs(cluster)
    run, checkpoints = output.parent, output.parent / "checkpoints"
    (checkpoints / "step 1").mkdir()
    (checkpoints / "step 1" / "w.pt").write_text("w")
    inside = {
        checkpoints / "last.pt": "step 1/w.pt",
        checkpoints / "of-container": "/checkpoints/step 1",
        checkpoints / "of-host": f"{run}/checkpoints/step 1/w.pt",
        output / "across": "../checkpoints/last.pt",
        output / "all": "/checkpoints",
        output / "through": "../checkpoints/of-container/../last.pt",
    }
    outside = {
        output / "data\n1": "/data/x",
        output / "logs\n2": "../logs/node-0.log",
        output / "odd\n3": "../../../../../../etc/passwd",
        output / "up\n4": "..",
    }
    for link, target in (inside | outside).items():
        link.symlink_to(target)
    code, _, err = cluster.ddpctl("fetch", "--to", "got")
    assert code == 0 and err.count("not fetched: 4 symbolic links, such as gpu") == 1, err
    assert all(line.startswith("ddpctl: ") for line in err.splitlines())
    got = Path("got")
    for link in (got / each.relative_to(run) for each in inside):
        folder = got.resolve() / "checkpoints"
        assert link.resolve().is_relative_to(folder if link.name == "all" else folder / "step 1")
        assert not link.readlink().is_absolute()
    names = {path.name for path in (got / "output").iterdir()}
    assert names == {"of-0", "of-1", "across", "all", "through"}
    (checkpoints / "last.pt").unlink()
    (checkpoints / "last.pt").symlink_to("step 2/w.pt")
    code, out, err = cluster.ddpctl("fetch", "--to", "got", "--json")
    assert (code, json.loads(out)["fetched"]) == (0, 1), err
    assert str((got / "checkpoints" / "last.pt").readlink()) == "step 2/w.pt"


def test_links_that_this_machine_cannot_hold_are_one_line(
    fake_cluster: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on exFAT, which many external disks have."""
    cluster = fake_cluster()
    for folder in outputs(cluster):
        (folder / "a").symlink_to("of-0")
        (folder / "b").symlink_to("of-0")

    def no_links(*_: object) -> None:
        raise PermissionError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(Path, "symlink_to", no_links)
    code, _, err = cluster.ddpctl("fetch", "--to", "got")
    assert code == 0 and err.count("not fetched: 2 symbolic links, such as gpu0:output/") == 1, err
    assert Path("got", "output", "of-0").exists()


def test_a_link_leads_to_the_file_of_its_own_node(fake_cluster: Make) -> None:
    cluster = fake_cluster()
    for number, folder in enumerate(outputs(cluster)):
        (folder / "best").write_text(f"of node {number}")
        (folder / "newest").symlink_to("best")
        (folder / "own").symlink_to(f"of-{number}")
    code, _, err = cluster.ddpctl("fetch", "--to", "got")
    assert code == 0, err
    own = Path("got", "nodes", "1", "output")
    assert [Path("got", "output", each).read_text() for each in ("newest", "own")] == [
        "of node 0",
        "x",
    ]
    assert (own / "newest").read_text() == "of node 1"
    assert (own / "own").resolve() == Path("got", "output", "of-1").resolve()


def test_a_host_cannot_place_a_link_outside_the_folder(fake_cluster: Make) -> None:
    cluster = fake_cluster()
    outputs(cluster)
    rows = "> output/a//../../x\\0> logs/b//../output\\0> output/c\\0> output/../../d//output/x\\0"
    rows += f"{'0' * 64}  output\\0"
    cluster.hosts["gpu0"].install(
        "find",
        f"#!/bin/sh\ncase $* in *'-type l'*) printf '{rows}' ;; *) exec /usr/bin/find \"$@\" ;; esac\n",
    )
    code, _, err = cluster.ddpctl("fetch", "--to", "got")
    assert code == 4 and "gpu0: its answer is not a list of the run's files" in err, err
    assert not [path for path in Path("got").rglob("*") if path.is_symlink()]


def test_the_folder_of_the_record_is_no_destination(fake_cluster: Make) -> None:
    cluster = fake_cluster()
    outputs(cluster)
    [folder] = cluster.state.glob("ddpctl/runs/*")
    before = (folder / "run.json").read_text()
    code, _, err = cluster.ddpctl("fetch", "--to", folder)
    assert code == 2 and "is where this machine keeps the run's record and logs" in err, err
    assert (folder / "run.json").read_text() == before and not (folder / "output").exists()


def test_hosts_that_only_earlier_attempts_used_are_named(fake_cluster: Make) -> None:
    """They are not asked: a host is often replaced because it is gone."""
    cluster = fake_cluster("gpu0", "gpu1", "gpu2")
    cluster.nodes_end(exit_code=1)
    assert cluster.launch()[0] == 1
    assert "not fetched" not in cluster.ddpctl("fetch", "--to", "got")[2]
    assert cluster.ddpctl("resume", "--exclude", "gpu2")[0] == 1
    code, _, err = cluster.ddpctl("fetch", "--to", "got")
    assert code == 0 and "not asked for files: gpu2, used only by earlier attempts" in err, err
