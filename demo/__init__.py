"""Demo of the whole product: install with Helm, apply an RLRun, watch it learn, evaluate the adapter.

`install.py` holds the steps of an administrator, once per cluster; `watch.py` those of a user, for each run. The
end-to-end tests use the same functions.
"""
