module rlrun.dev/local-cluster/pause

go 1.25.0
