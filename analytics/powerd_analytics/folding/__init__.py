"""Phases that are shorter than the sensor resolves, from many iterations seen at shifting moments."""
