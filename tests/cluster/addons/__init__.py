"""What a cluster carries beside Kubernetes: DNS, queues, gangs, sets of jobs, nodes of paper."""
