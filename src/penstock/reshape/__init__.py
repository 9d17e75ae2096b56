"""Whole datasets → other datasets of the same rows: merged, shuffled, split, filtered, cut out."""
