"""What a figure is: a value with its uncertainty, the mean of several, the figures of merit, and the best of many."""
