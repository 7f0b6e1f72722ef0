"""Our kinds as all components read them: the only place where their objects become Structs.

One module for each kind, and `ordered` for the two that carry orders. `model/objects` defines what is written, and the
CRDs; the coordinator's journal reads its records through those models, because a record has every field.
"""
