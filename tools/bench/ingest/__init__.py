"""`make bench-ingest`: video frames into a detector, with batches by fixed windows and by the agent's."""
