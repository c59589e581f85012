"""The main job, told from outside: install with Helm, apply an RLRun, watch it learn, prove the adapter.

`install.py`'s half is what a platform team does once per cluster, `watch.py`'s what a user does for each run. The
end-to-end tests stand on the same functions, so what the demo shows is what the tests check.
"""
