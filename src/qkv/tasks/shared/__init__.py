"""What several tasks share, or what one of them can do without a model: scores, and what they are compared with."""
