"""Kafka, NATS JetStream, RabbitMQ streams and Redis streams: their own servers, and lean clients for them."""
