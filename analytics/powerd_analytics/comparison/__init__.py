"""Two runs or campaigns side by side."""
