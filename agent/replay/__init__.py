"""Recordings through the clock, offline: readers of CSV, telemetry and captures, scores, summary, plot."""
