"""Using it on your own data: the scikit-learn API on the same models, optimisers and predictions."""
