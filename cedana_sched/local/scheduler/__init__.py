"""The embedded engine's scheduler: pure functions from the state of groups and jobs to decisions, in Kueue's words.

resources          amounts of cpu and memory       ledger             quota arithmetic and dominant shares
state              what goes in and comes out      candidates         who may be preempted, in which order
quota_preemption   victims by quota and priority   share_preemption   victims by weighted fair share
search             the choice of one or the other  decide             one scheduling cycle
reasons            why a job waits, in words
"""
