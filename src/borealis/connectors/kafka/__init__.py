"""Topics of Kafka, exactly once in both directions."""
