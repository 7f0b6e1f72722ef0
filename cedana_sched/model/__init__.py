"""The domain model: pure data and pure rules. No I/O, clock or client; imported by every other package."""
