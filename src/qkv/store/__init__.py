"""What is kept on disk: checkpoints of a run and finished models, whole or refused, and never pickled."""
