"""The figures that this program promises, each measured with both of its sides in one run."""
