"""Process bootstrap of components: configuration, logging, health, shutdown."""
