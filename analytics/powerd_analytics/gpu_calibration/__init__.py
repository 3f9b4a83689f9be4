"""What a GPU's own sensor does to its readings, from random loads and from references."""
