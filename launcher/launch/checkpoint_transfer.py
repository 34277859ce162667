"""Before a further attempt: the newest whole checkpoint goes to the hosts that lack it.

It travels through this machine, into a hidden folder beside its place, is held against the digests that
its source told, and is then renamed into place; what stood there is kept as `.before-attempt-N`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from launcher.errors import CommandFailed
from launcher.launch.checkpoint_choice import Choice, File, Gift, Held, Step, choose
from launcher.plan.plan import HOME
from launcher.runs.record import AttemptRecord, RunRecord
from launcher.ssh.many import ask_each
from launcher.ssh.node import Node
from launcher.ssh.stream import READ_SIZE, Completed
from launcher.terminal.console import Console

# $1 run folder. NUL-separated: the newest whole step, damaged ones above it, then every file.
LIST = r"""
cd "$1/checkpoints" 2>/dev/null || exit 0
for step in $(ls -d ckpt/step-[0-9]* 2>/dev/null | sort -rV); do
  [ -f "$step/MANIFEST" ] || continue
  if (cd "$step" && sha256sum -c --status MANIFEST) >/dev/null 2>&1; then
    printf 'whole %s %s\0' "$(sha256sum < "$step/MANIFEST" | cut -d ' ' -f 1)" "$step"
    break
  fi
  printf 'damaged - %s\0' "$step"
done
find . -mindepth 1 -name '.*' -prune -o -type f -printf '%T@ %s %P\0'
"""
# $1 run folder, NUL-separated paths on standard input
DIGESTS = (
    'cd "$1/$2" && xargs -0 -r -I@ find ./@ -type f -print0 | sort -z | xargs -0 -r sha256sum -z'
)
SEND = 'cd "$1/checkpoints" && tar -cf - --null -T -'
TAKE = 'mkdir -p "$1/checkpoints/$2" && tar -xf - -C "$1/checkpoints/$2"'
# $1 run folder, $2 where it has come to, $3 where the old goes, $4 "open" for another user's sake
PUT = r"""
cd "$1/checkpoints" || exit 1
if [ "$4" = open ]; then chmod -R a+rwX "$2"; fi
xargs -0 -r -n 1 sh -c '
  set -e
  folder=$(dirname "./$2")
  if [ -e "./$2" ]; then mkdir -p "$1/$folder"; mv "./$2" "$1/$folder/"; fi
  mkdir -p "$folder"
  mv "$0/$2" "./$2"' "$2" "$3" || exit 1
rm -rf "$2"
"""
DROP = 'rm -rf "$1/checkpoints/$2"'


@dataclass(frozen=True)
class Keeper:
    """A host that may have checkpoints of the run, and where."""

    node: Node
    run_dir: str
    rank: int | None
    same_place: bool


def hand_over(
    nodes: Sequence[Node],
    former: Sequence[Node],
    record: RunRecord,
    console: Console,
    *,
    open_to_all: bool = False,
) -> Choice:
    """Sees to it that the next attempt's hosts have what it goes on from, and says what that is.

    nodes: of the next attempt, in rank order; former: other hosts that may have checkpoints.
    open_to_all: the container's user is another than the one that logs in.
    Raises DdpctlError when what is there cannot be brought to a host that needs it.
    """
    keepers = keepers_of(nodes, former, record)
    by_node = {keeper.node: keeper for keeper in keepers}
    seen, failures = ask_each([*by_node], lambda node: look(by_node[node]))
    for name in failures:
        console.say(f"cannot see {name}: what only it has of the checkpoints is not used")
    choice = choose([seen[k.node.name] for k in keepers if k.node.name in seen])
    for host in seen.values():
        for path in host.damaged:
            console.say(f"{host.host}: {path} is damaged, so it is not used")
    if choice.source is None:
        console.say("no host has a checkpoint of this run: it begins anew")
        return choice
    console.say(f"goes on from {choice.what} of {choice.source.host}")
    by_name = {keeper.node.name: keeper for keeper in keepers}
    aside = f".before-attempt-{len(record.attempts) + 1}"
    for gift in choice.gifts:
        with console.step(f"giving {gift.what} of {gift.source.host} to {gift.target.host}"):
            give(by_name, gift, aside, "open" if open_to_all else "")
    return choice


def keepers_of(nodes: Sequence[Node], former: Sequence[Node], record: RunRecord) -> list[Keeper]:
    """Each machine once; two nodes on one machine share its folder."""
    attempt: AttemptRecord = record.attempt
    before = {entry.host: entry for entry in reversed(attempt.nodes)}
    found: dict[tuple[str | None, str, int], Keeper] = {}
    for rank, node in [*enumerate(nodes), *((None, node) for node in former)]:
        entry = before.get(node.name)
        run_dir = entry.run_dir if entry else f"{HOME}/runs/{record.run_id}"
        same = entry is not None and entry.node_rank == rank
        found.setdefault(node.host.account, Keeper(node, run_dir, rank, same))
    return [*found.values()]


def look(keeper: Keeper) -> Held:
    done = run(keeper, LIST)
    whole, damaged, files = None, [], {}
    for row in done.stdout.split(b"\0")[:-1]:
        first, second, path = row.decode(errors="surrogateescape").split(" ", 2)
        if first == "whole":
            whole = Step(path, second)
        elif first == "damaged":
            damaged.append(path)
        else:
            files[path] = File(int(first.partition(".")[0]), int(second))
    return Held(keeper.node.name, keeper.rank, keeper.same_place, whole, tuple(damaged), files)


def give(by_name: dict[str, Keeper], gift: Gift, aside: str, mode: str) -> None:
    source, target = by_name[gift.source.host], by_name[gift.target.host]
    paths = b"".join(path.encode(errors="surrogateescape") + b"\0" for path in gift.paths)
    coming = f".coming-{gift.source.host}"
    wanted = run(source, DIGESTS, "checkpoints", stdin=paths).stdout
    run(target, DROP, coming)
    _carry(source, target, paths, coming)
    if run(target, DIGESTS, f"checkpoints/{coming}", stdin=paths).stdout != wanted:
        run(target, DROP, coming)
        raise CommandFailed(
            f"{gift.target.host}: {gift.what} of {gift.source.host} did not arrive whole; "
            "resume again, and look at the disks of both hosts"
        )
    run(target, PUT, coming, aside, mode, stdin=paths)


def _carry(source: Keeper, target: Keeper, paths: bytes, coming: str) -> None:
    send = source.node.open_script(SEND, run_dir_of(source))
    take = target.node.open_script(TAKE, run_dir_of(target), coming)
    try:
        send.write(paths)
        send.close_stdin()
        while data := send.read(READ_SIZE):
            take.write(data)
        take.close_stdin()
        for keeper, stream in ((source, send), (target, take)):
            if stream.wait(60.0) != 0:
                said = stream.stderr_tail().strip().splitlines() or ["tar failed"]
                raise CommandFailed(
                    f"{keeper.node.name}: could not hand the checkpoint over: {said[-1]}"
                )
    except BrokenPipeError:
        said = take.stderr_tail().strip().splitlines() or ["it took no more"]
        raise CommandFailed(
            f"{target.node.name}: could not take the checkpoint: {said[-1]}; look at `df -h` there"
        ) from None
    finally:
        send.close()
        take.close()


def run_dir_of(keeper: Keeper) -> str:
    """The run's folder as an absolute path."""
    if keeper.run_dir.startswith("~/"):
        return f"{keeper.node.home()}/{keeper.run_dir[2:]}"
    return keeper.run_dir


def run(keeper: Keeper, script: str, *words: str, stdin: bytes = b"") -> Completed:
    """Digests of a large checkpoint take their time. CommandFailed unless it ended well."""
    done = keeper.node.script(script, run_dir_of(keeper), *words, stdin=stdin, timeout=900.0)
    if done.code != 0:
        said = done.stderr.decode(errors="replace").strip().splitlines() or [f"exit {done.code}"]
        raise CommandFailed(f"{keeper.node.name}: {keeper.run_dir}/checkpoints: {said[-1]}")
    return done
