"""A logistic regression in numpy. It knows nothing of powerd: `joules record` measures it as a whole."""

import numpy as np

rng = np.random.default_rng(0)
samples = rng.normal(size=(20_000, 200))
answers = samples @ rng.normal(size=200) > 0
weights = np.zeros(200)
for _ in range(60):
    chances = 1 / (1 + np.exp(-samples @ weights))
    weights += 0.5 * samples.T @ (answers - chances) / len(answers)
print(f"right: {np.mean((samples @ weights > 0) == answers):.1%}")
