"""The supervisor of a node. It runs torchrun, inside the node's container if there is one.

`launcher.start.fill_node_folders` packs this folder into one zip. The code uses only Python's
standard library (Python 3.8 or newer, Linux) and imports nothing from the launcher.

If hosts share a home directory, another host may write the file that marks a run as killed, requests for
stacks and the trainer's progress files (see ranks.py). The supervisor finds the mark and the
requests by listing their folder, which makes the NFS client see files that other hosts wrote. Nothing
relies on inotify.
"""
