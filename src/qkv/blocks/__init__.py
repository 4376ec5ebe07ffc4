"""The parts of a model: norms, feed-forward, residual layers, embeddings, patches and pools."""
