"""Engines, which run the nodes of runs on a host: Docker, Podman, Apptainer or plain processes.

To add an engine, write a subclass of `base.Engine` in a new file and add a line to `choose.ENGINES`.
"""
