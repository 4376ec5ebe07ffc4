"""The schema of a run: what can be configured, and how it is read, written and overridden; no torch."""
