"""Engines run the nodes of a run as Docker containers, or as processes on this machine.

To add an engine, write a class that satisfies `base.Engine` in a file of its own and add a line to
`choose.ENGINES`.
"""
