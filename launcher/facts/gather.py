"""Asking hosts for their facts."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Sequence

from launcher.errors import CommandFailed
from launcher.facts import script
from launcher.facts.script import Facts
from launcher.ssh.node import Node, each_node


def gather(nodes: Sequence[Node]) -> tuple[Facts, ...]:
    """What every host says about itself. Raises NodesFailed naming each that does not answer."""
    found = each_node(nodes, lambda node: gather_one(node, ports=node is nodes[0]))
    return tuple(found[node] for node in nodes)


def gather_one(node: Node, *, ports: bool) -> Facts:
    """ports: which ports are listened on too."""
    asked_for = ["ports"] if ports else []
    if node.host.gpus != 0:
        asked_for.append("gpus")
    node.connect()
    asked = time.time()
    done = node.script(script.SCRIPT, *asked_for)
    answered = time.time()
    try:
        facts = script.parse(done.stdout.decode(errors="replace"))
    except (ValueError, KeyError) as error:
        raise CommandFailed(
            f"{node.name}: its shell could not say what the host is ({error}); "
            "the login shell of the SSH user must be able to run `sh`"
        ) from None
    # The host read its clock at the script's first line: near `asked`, at most a round trip later.
    return dataclasses.replace(
        facts, clock_skew=facts.clock - (asked + answered) / 2, clock_error=(answered - asked) / 2
    )
