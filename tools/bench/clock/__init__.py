"""Figures of the clock: synthetic clocks of known truth, recordings, baselines, and the limit of what can be known."""
