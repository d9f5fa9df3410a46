"""What steering queues is worth, judged by the consumer's own clock (`make bench-control`)."""
