"""Code that runs when Python starts in a rank, and prepares the rank.

It answers signals with the rank's stack, keeps the rank on the cores next to its GPU, raises the
limit on open files, and sets the right TORCHELASTIC_RESTART_COUNT. torchrun's own count is always
0, because ddpctl starts torchrun again for each restart in place.

The supervisor copies this file to its own folder and puts that folder first on torchrun's
PYTHONPATH. This code must not break anything, so it ignores errors, removes the folder from
PYTHONPATH and sys.path again to hide it from the script and its children, and then runs the user's
own sitecustomize. It imports only modules that Python has already loaded or that load fast.
"""

from __future__ import annotations

import os
import sys
import time

FOLDER = os.path.dirname(__file__)
# Real-time signals are queued, and no program sends them by accident. faulthandler writes the
# stack inside the signal handler, so even a thread that waits in C for another rank responds.
MAIN_THREAD, ALL_THREADS = 58, 59
HIGH = 200  # the script may expect its descriptors to have the usual low numbers
OPEN_FILES = 65536  # data loader workers pass tensors as files; the usual limit is 1024
LAST_MOMENT = 0.2  # seconds for Gloo's threads to finish before Python exits


def listen() -> None:
    """Install the signal handlers, which write to a file named after this process's pid.

    The process may be the rank itself or a child of it.
    """
    import faulthandler
    import fcntl

    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND | os.O_CLOEXEC
    low = os.open(os.path.join(FOLDER, str(os.getpid())), flags, 0o600)
    try:
        out = fcntl.fcntl(low, fcntl.F_DUPFD_CLOEXEC, HIGH)
    finally:
        os.close(low)
    faulthandler.register(MAIN_THREAD, file=out, all_threads=False, chain=False)
    faulthandler.register(ALL_THREADS, file=out, all_threads=True, chain=False)


class DumpOnRequest:
    """Dumps torch's flight recorder when the supervisor asks for it or after an exception.

    A thread waits for the request, because the main thread may wait in a collective. The thread
    starts only when the script imports torch.distributed: a script that ends at once could end
    before the thread is ready.
    """

    def __init__(self) -> None:
        self._folder = os.environ.pop("DDPCTL_FLIGHT_RECORDER")
        self._rank, self._pid = os.environ["RANK"], os.getpid()
        self._pipe = os.path.join(self._folder, "ask-%d" % self._pid)
        sys.meta_path.insert(0, self)

    def find_spec(self, name: str, path: object = None, target: object = None) -> None:
        """Start the thread when the script imports torch.distributed. Never finds a module."""
        if name == "torch.distributed" and self in sys.meta_path:
            sys.meta_path.remove(self)
            try:
                self._start()
            except Exception:  # the run matters more
                pass

    def _start(self) -> None:
        import _thread
        import atexit
        import signal

        os.mkfifo(self._pipe, 0o600)
        self._asked = os.open(self._pipe, os.O_RDWR | os.O_CLOEXEC)  # RDWR: `_wait` sees no EOF
        self._writing = _thread.allocate_lock()
        atexit.register(self._leave)
        signals = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        try:
            _thread.start_new_thread(self._wait, ())  # the thread must receive no signals
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, signals)

    def _wait(self) -> None:
        os.read(self._asked, 1)
        with self._writing:
            try:
                self._write()
            finally:
                os.unlink(self._pipe)

    def _leave(self) -> None:
        """Stop answering when Python exits. First write a dump if an exception ended the script.

        Then wait for a moment: a Gloo thread that frees a tensor while Python exits would abort the rank
        after all its work is done (torch 2.13, Python before 3.14).
        """
        if os.getpid() != self._pid:  # a forked child
            return
        with self._writing:
            if hasattr(sys, "last_value"):
                self._write()
            if os.path.exists(self._pipe):
                os.unlink(self._pipe)
        time.sleep(LAST_MOMENT)

    def _write(self) -> None:
        torch = sys.modules.get("torch._C._distributed_c10d")
        for name, kind in (("_dump_fr_trace", "gloo"), ("_dump_nccl_trace", "nccl")):
            dump = getattr(torch, name, None)
            path = os.path.join(self._folder, "%s-rank-%s" % (kind, self._rank))
            if dump is not None and not os.path.exists(path):  # torch may have written it
                with open(path + ".part", "wb") as file:
                    file.write(dump(True, False, False))  # a dump with stacks takes seconds
                os.rename(path + ".part", path)


def leave(is_rank: bool) -> None:
    """Remove the folder from sys.path and, in a rank, from PYTHONPATH.

    In torchrun, it must stay in PYTHONPATH so that it reaches the ranks.
    """
    sys.path[:] = [path for path in sys.path if path != FOLDER]
    if not is_rank:
        return
    own = [path for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path != FOLDER]
    if own:
        os.environ["PYTHONPATH"] = os.pathsep.join(own)
    else:
        os.environ.pop("PYTHONPATH", None)


def pin() -> None:
    """Run this rank and its children on the cores next to its GPU."""
    lists = os.environ["DDPCTL_RANK_CORES"].split()
    cores: set[int] = set()
    for part in lists[int(os.environ["LOCAL_RANK"])].split(","):
        low, _, high = part.partition("-")
        cores.update(range(int(low), int(high or low) + 1))
    os.sched_setaffinity(0, cores & os.sched_getaffinity(0))


def allow_open_files() -> None:
    """Raise the soft limit on open files to the hard limit or OPEN_FILES, whichever is lower."""
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = OPEN_FILES if hard == resource.RLIM_INFINITY else min(hard, OPEN_FILES)
    if soft != resource.RLIM_INFINITY and soft < most:
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))


def begin() -> None:
    is_rank = "RANK" in os.environ and "TORCHELASTIC_RUN_ID" in os.environ
    leave(is_rank)
    if is_rank and "DDPCTL_RESTART_COUNT" in os.environ:
        os.environ["TORCHELASTIC_RESTART_COUNT"] = os.environ["DDPCTL_RESTART_COUNT"]
    for act in (listen, pin, allow_open_files, DumpOnRequest) if is_rank else ():
        try:
            act()
        except Exception:  # the run matters more
            pass
    ours = sys.modules.pop("sitecustomize")
    try:
        __import__("sitecustomize")  # the user's, or the image's
    except ImportError as error:
        if error.name != "sitecustomize":
            raise
        sys.modules["sitecustomize"] = ours


if __name__ == "sitecustomize":  # the supervisor imports the signal numbers from here
    begin()
