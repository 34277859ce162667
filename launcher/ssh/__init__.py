"""Machines reached by SSH, and this one."""
