"""`tailrace bench spark`: streams as source and sink of Spark, beside Spark's own formats and Kafka in one run."""
