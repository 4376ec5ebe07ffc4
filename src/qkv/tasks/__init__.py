"""Tasks: what a model is trained for: batches, loss, scores, and the predictor that users get."""
