"""Our kinds as all components read them: the only place where their objects become Structs.

`cached_*` has what caches keep of each kind, `shown_records` what commands show, `order_exchange` the orders that
Checkpoints and Restores carry.
`model/objects` defines what is written, and the CRDs; the coordinator's journal reads its records through those models,
because a record has every field.
"""
