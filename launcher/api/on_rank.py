"""Runs on each rank: calls the function that `ddpctl.run` sent, and writes its result to a file.

This file is copied to the hosts, next to the files that it reads. It needs Python 3.8 or newer.
"""

from __future__ import annotations

import atexit
import base64
import importlib
import json
import operator
import os
import pickle
import sys
import traceback
from typing import Any

HERE = os.path.dirname(os.path.abspath(__file__))
SOURCE = os.path.join(HERE, "ddpctl_source.py")

if os.path.exists(SOURCE):
    # Pickles refer to names in __main__, so the function and what it uses must be defined there.
    with open(SOURCE, encoding="utf-8") as file:
        exec(compile(file.read(), SOURCE, "exec"))


def main() -> None:
    returned_well: list[bool] = []
    # registered first, so that it runs after all handlers that the function registers
    atexit.register(lambda: exit_without_finalization() if returned_well else None)
    with open(os.path.join(HERE, "ddpctl_call.json"), encoding="utf-8") as file:
        call = json.load(file)
    try:
        outcome = returned(call)
    except Exception as error:
        write(raised(error, call["trust"]))
        raise
    write(outcome)
    close_process_group()
    returned_well.append(True)


def exit_without_finalization() -> None:
    """Exit without Python's finalization, in which a Gloo thread may abort the process (pytorch#179291)."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


def close_process_group() -> None:
    """Close torch's process group once all ranks are done. If one left early, others would fail."""
    dist: Any = sys.modules.get("torch.distributed")
    if dist and dist.is_available() and dist.is_initialized():
        dist.barrier()
        dist.destroy_process_group()


def returned(call: dict[str, Any]) -> str:
    """Call the function. Return its result as JSON. Raises TypeError or ValueError if it cannot be sent."""
    function: Any = operator.attrgetter(call["function"])(importlib.import_module(call["module"]))
    if call["trust"]:
        args, kwargs = pickle.loads(base64.b64decode(call["pickle"]))
        text = json.dumps({"pickle": pickled(function(*args, **kwargs))})
    else:
        result = function(*call["args"], **call["kwargs"])
        try:
            text = json.dumps({"result": result})
        except (TypeError, ValueError) as error:
            raise TypeError(
                "ddpctl.run: the result cannot be sent as JSON (%s); return numbers, strings, lists and "
                "dicts, or call run(..., trust=True)" % error
            ) from None
    limit = call["limit"] // int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    if len(text) > limit:
        raise ValueError(
            "ddpctl.run: the result has %d bytes, but the limit is %d; write large results to "
            "$DDPCTL_OUTPUT_DIR and fetch them with `ddpctl fetch`" % (len(text), limit)
        )
    return text


def raised(error: Exception, trust: bool) -> str:
    report = traceback.TracebackException(type(error), error, error.__traceback__)
    ours = main.__code__.co_filename
    users = [frame for frame in report.stack if frame.filename != ours]
    report.stack = traceback.StackSummary.from_list(users)
    kind = type(error)
    outcome: dict[str, Any] = {
        "error": {
            "type": kind.__qualname__,
            "built_in": kind.__module__ == "builtins",
            "message": str(error),
            "traceback": "".join(report.format()),
        }
    }
    if trust:
        try:
            outcome["pickle"] = pickled(error)
        except Exception:
            pass  # the exception's text is enough
    return json.dumps(outcome)


def pickled(value: Any) -> str:
    return base64.b64encode(pickle.dumps(value)).decode()


def write(text: str) -> None:
    attempt = "attempt-" + os.environ["DDPCTL_ATTEMPT"]
    node = "node-" + os.environ["DDPCTL_NODE_RANK"]
    folder = os.path.join(os.environ["DDPCTL_OUTPUT_DIR"], "results", attempt, node)
    os.makedirs(folder, exist_ok=True)
    path = os.path.join(folder, "rank-" + os.environ["RANK"])
    with open(path + ".new", "w", encoding="utf-8") as out:
        out.write(text)
    os.replace(path + ".new", path)


if __name__ == "__main__":
    main()
