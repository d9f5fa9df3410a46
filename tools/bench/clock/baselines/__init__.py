"""What there was before: each predicts the offset from (time, offset, read delay), with its published constants."""
