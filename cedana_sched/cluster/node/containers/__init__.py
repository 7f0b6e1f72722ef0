"""The CRI containers of a node as its files show them: their pods, and what CRIU needs to dump them."""
