"""Watches torchrun on each node. Runs inside the container, without the launcher.

`launcher.launch.supervisor_bundle` packs this folder into one file and puts it there. It uses only
Python's standard library (Python 3.8 or newer, Linux) and imports nothing else of the launcher.
"""
