"""Fan-out: one stream, more and more consumers, ours beside Kafka, NATS, RabbitMQ and Redis, in one run."""
