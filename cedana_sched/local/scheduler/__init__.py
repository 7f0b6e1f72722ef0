"""The embedded engine's scheduler: pure functions from the state of groups and jobs to decisions, in Kueue's terms.

resources           amounts of cpu and memory       ledger             quota arithmetic and dominant shares
scheduling_types    input and output                candidates         preemption candidates, in order
quota_preemption    victims by quota and priority   share_preemption   victims by weighted fair share
victim_search       choice between the two          decide             one scheduling cycle
preemption_backoff  how long a job is spared        reasons            why a job waits, for users
"""
