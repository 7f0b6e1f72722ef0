"""`cedana-sched doctor`: checks of the prerequisites on this machine or in a cluster, with remedies.

command           runs all, prints
check_runner      runs one check, whose error is a finding
machine           kernel, capabilities, namespaces, control groups
criu              the toolchain and the kernel features that it needs
gpus_and_disk     GPUs, disks
engine_and_store  the engine and the store
cluster           a Kubernetes cluster, with the user's own permissions
"""
