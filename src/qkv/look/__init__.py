"""Pictures of attention, in the terminal and as files."""
