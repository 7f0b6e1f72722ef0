"""`cedana-sched doctor`: checks of the prerequisites on this machine or in a cluster, with remedies.

findings   result of a check        machine   kernel, capabilities, namespaces, control groups
command    runs all, prints         criu      the toolchain and the kernel features that it needs
                                    devices   GPUs, disks        services   the engine and the store
                                    cluster   a Kubernetes cluster, with the user's own permissions
"""
