"""Energy and efficiency of layers."""
