"""Supervises torchrun on each node. Runs inside the container, without the launcher.

`launcher.launch.supervisor_bundle` packs this folder into one zip. It uses only Python's standard
library (Python 3.8 or newer, Linux) and imports nothing of the launcher.
"""
