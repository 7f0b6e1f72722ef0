"""The embedded engine's scheduler: pure functions from the state of groups and jobs to decisions, in Kueue's terms.

resources          amounts of cpu and memory       ledger             quota arithmetic and dominant shares
state              input and output                candidates         preemption candidates, in order
quota_preemption   victims by quota and priority   share_preemption   victims by weighted fair share
search             choice between the two          decide             one scheduling cycle
reasons            why a job waits, for users
"""
