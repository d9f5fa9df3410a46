"""`make train`: train the clock's LSTM, and measure what it earns."""
