"""The numerics that several unit types share."""
