"""Kinds of the objects that a run consists of: reconciles list them, watches report their changes."""

from rlrun.kube.kinds import CONFIG_MAP, JOB, NETWORK_POLICY, POD, REPLICA_SET, SERVICE, SERVICE_ACCOUNT

CHILDREN = (REPLICA_SET, JOB, SERVICE, NETWORK_POLICY, CONFIG_MAP, SERVICE_ACCOUNT)
"""Kinds that the operator creates for a run, besides the Secret of its tokens, which is read by its name."""
PODS_AND_CHILDREN = (POD, *CHILDREN)
