"""The journal format, and this machine's log store.

Three writers copy entries of the hosts' journals to a run's LogStore, which takes each only once:
follow/session.py and look/logs.py while the run is followed, and runs/sync_logs.py when a command
looks at it later. One reader, `merged` in query.py, filters what is stored and merges the nodes by
time.

An offset is a number of bytes from the beginning of a journal on its host. A Mark pairs it with a
size of the log here. `known` are the newest marks, and `shown` those up to which lines are on screen.
"""
