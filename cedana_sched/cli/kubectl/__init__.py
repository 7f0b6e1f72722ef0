"""`kubectl cedana`: the command line of a cluster. It shows what a person's rights in the cluster allow.

main             the application, and its entry point
completion       of its command line, for kubectl
cluster_options  which cluster and which namespaces
reads            what they read, with the rights of their caller
views            what they show, also as JSON
view_builders    views of what was read
tables           the same as tables and text
pods             commands `list` and `inspect`
status           command `status`
live_operations  what `status --watch` follows
admin            commands `hold`, `policy`, `doctor`
"""
