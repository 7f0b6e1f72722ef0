"""What becomes of jobs: their life as a table, the loop that moves them, and the journal that remembers them."""
