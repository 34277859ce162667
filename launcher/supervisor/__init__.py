"""Supervises torchrun on each node. Runs inside the container, without the launcher.

`launcher.start.supervisor_bundle` packs this folder into one zip. It uses only Python's standard
library (Python 3.8 or newer, Linux) and imports nothing of the launcher.

On a shared home, another host may write these files: the cancel file and requests for stacks (found by
listing their folder, which makes NFS ask its server), and the trainer's progress files (ranks.py).
Nothing relies on inotify.
"""
