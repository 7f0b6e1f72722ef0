"""A program that holds a given amount of memory, for benchmarks."""
