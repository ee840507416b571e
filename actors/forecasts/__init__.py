"""The predictors' history and how they are brought back from it; no Ray."""
