"""The supervisor, which runs torchrun on a node: in its container, if it has one.

`launcher.start.node_folders` packs this folder into one zip. The code uses only Python's
standard library (Python 3.8 or newer, Linux) and imports nothing of the launcher.

On a shared home, another host may write the cancel file, requests for stacks and the trainer's
progress files (ranks.py). The supervisor finds the first two by listing their folder, which makes
NFS ask its server. Nothing relies on inotify.
"""
