"""How a scheduler plugs in: the contract that every adapter fulfils, and the registry that finds adapters."""
