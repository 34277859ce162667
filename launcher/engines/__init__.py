"""Engines run the nodes of runs on a host: in Docker, Podman or Apptainer, or as plain processes.

To add an engine, write a class that satisfies `base.Engine` in a file of its own and add a line to
`choose.ENGINES`.
"""
