"""What watches torchrun on each node. It runs inside the container, without the launcher.

`launcher.bundle` packs this folder into the one file that is put there: Python's standard library only,
Python 3.8 or newer, Linux; it imports nothing else of the launcher, and nothing imports it but tests.
"""
